/** JSON in a shape: what is said of what does not fit. */
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { readAs } from "../../src/leaves/shape.ts";

const misfit = (shape: z.ZodType, input: unknown) => {
  const read = readAs(shape, input);
  return "misfit" in read ? `${read.misfit.path}|${read.misfit.rule}|${read.misfit.value}` : read;
};

describe("readAs()", () => {
  test("gives what fits, with the shape's defaults", () => {
    expect(readAs(z.object({ a: z.number().default(3) }), {})).toEqual({ data: { a: 3 } });
  });

  test.each<[z.ZodType, unknown, string]>([
    [z.string(), 7, "|it must be a text|7"],
    [z.number(), "7", '|it must be a number|"7"'],
    [z.number().int(), 0.5, "|it must be a whole number|0.5"],
    [z.boolean(), null, "|it must be true or false|null"],
    [z.array(z.string()), {}, "|it must be a list|{}"],
    [z.object({}), [], "|it must be an object|[]"],
    [z.record(z.string(), z.string()), 7, "|it must be an object|7"],
    [z.bigint(), 7, "|it must be bigint|7"],
    [z.literal("adamw"), "sgd", '|it must be "adamw"|"sgd"'],
    [z.enum(["a", "b"]), "c", '|it must be "a" or "b"|"c"'],
    [z.number().min(1), 0, "|it must be at least 1|0"],
    [z.number().gt(1), 1, "|it must be above 1|1"],
    [z.number().max(1), 2, "|it must be at most 1|2"],
    [z.number().lt(1), 1, "|it must be below 1|1"],
    [z.string().min(2), "x", '|it must have at least 2 characters|"x"'],
    [z.string().max(2), "xxx", '|it must have at most 2 characters|"xxx"'],
    [z.array(z.number()).min(2), [1], "|it must have at least 2 entries|[1]"],
    [z.string().regex(/^x$/), "y", '|it has none of the known forms|"y"'],
    [z.string("give a name"), 7, "|give a name|7"],
  ])("says of %# what it must be, and what it is", (shape, input, said) => {
    expect(misfit(shape, input)).toBe(said);
  });

  test.each<[z.ZodType, unknown, string]>([
    [z.object({ a: z.array(z.object({ b: z.string() })) }), { a: [{ b: "x" }, { b: 7 }] }, "a.1.b|it must be a text|7"],
    [z.object({ a: z.object({ b: z.string() }) }), {}, "a|it must be an object|undefined"],
    [z.strictObject({ a: z.string() }), { a: "x", c: 1, d: 2 }, "c|there is no such parameter|1"],
    [z.object({ a: z.strictObject({}) }), { a: { c: [1] } }, "a.c|there is no such parameter|[1]"],
  ])("names the first place that does not fit (%#)", (shape, input, said) => {
    expect(misfit(shape, input)).toBe(said);
  });

  test("shortens a long value", () => {
    const just = "x".repeat(58);
    expect(misfit(z.number(), just)).toBe(`|it must be a number|"${just}"`);
    expect(misfit(z.number(), `${just}y`)).toBe(`|it must be a number|"${just}y...`);
  });
});
