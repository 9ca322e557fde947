/** Schemas as pydantic 2 and zod 4 write them: random texts of their grammars are valid, as Ajv and zod judge. */
import { readFileSync } from "node:fs";
import { Ajv } from "ajv";
import { Ajv2020 } from "ajv/dist/2020.js";
import formats from "ajv-formats";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { type JsonSchema, schemaRule } from "../../../src/chat/grammar/schema.ts";
import { GrammarConstraint } from "../../../src/chat/grammar/vocabulary.ts";
import { chatTokenizer } from "../../fixtures/chat.ts";
import { dice, drawText, tokensOf } from "../../fixtures/random_schemas.ts";

const tokenizer = chatTokenizer();
const tokens = tokensOf(tokenizer);

const OPTIONS = {
  strict: false,
  logger: false as const,
  validateSchema: false,
  multipleOfPrecision: 9,
  validateFormats: true,
};

function validatorOf(schema: JsonSchema): (value: unknown) => boolean {
  const isOld = typeof schema === "object" && String(schema.$schema).includes("draft-07");
  const ajv = isOld ? new Ajv(OPTIONS) : new Ajv2020({ ...OPTIONS, discriminator: false });
  formats.default(ajv as Ajv);
  return ajv.compile(schema);
}

/** Values of so many texts that ended. */
function valuesOf(schema: JsonSchema, texts = 12): unknown[] {
  const constraint = new GrammarConstraint(schemaRule(schema), tokenizer);
  const drawn = Array.from({ length: texts }, (_, seed) =>
    drawText(constraint, { tokenizer, tokens, roll: dice(seed) }),
  );
  return drawn.flatMap((text) => (text === undefined ? [] : [JSON.parse(text) as unknown]));
}

const PYDANTIC = JSON.parse(
  readFileSync(new URL("../../fixtures/schemas/pydantic.json", import.meta.url), "utf8"),
) as Record<string, JsonSchema>;

/** What a grammar cannot keep, with the place that the error names. */
const REFUSED: Readonly<Record<string, [path: string, says: RegExp]>> = {
  "set of strings": ["schema.uniqueItems", /unless the items are of an enum/],
  endless: ["schema.$ref", /no finite value/],
};

describe("pydantic", () => {
  test.each(Object.entries(PYDANTIC).filter(([name]) => !REFUSED[name]))("%s", (_, schema) => {
    const values = valuesOf(schema);
    expect(values.length).toBeGreaterThan(2);
    const isValid = validatorOf(schema);
    expect(values.filter((value) => !isValid(value))).toEqual([]);
  });

  test.each(Object.entries(REFUSED))("%s is refused", (name, [path, says]) => {
    expect(() => schemaRule(PYDANTIC[name]!)).toThrow(says);
    expect(() => schemaRule(PYDANTIC[name]!)).toThrow(expect.objectContaining({ path }));
  });
});

const Category = z.object({
  name: z.string(),
  get children() {
    return z.array(Category);
  },
});

const ZOD: Readonly<Record<string, z.ZodType>> = {
  email: z.email(),
  url: z.url(),
  uuid: z.uuid(),
  guid: z.guid(),
  datetime: z.iso.datetime(),
  "datetime with an offset": z.iso.datetime({ offset: true, precision: 3 }),
  date: z.iso.date(),
  time: z.iso.time(),
  duration: z.iso.duration(),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  cidr: z.cidrv4(),
  base64: z.base64(),
  nanoid: z.nanoid(),
  ulid: z.ulid(),
  e164: z.e164(),
  hex: z.hex(),
  int: z.int(),
  int32: z.int32(),
  multiple: z.number().multipleOf(0.25).positive().max(20),
  cents: z.number().multipleOf(0.01).min(0).max(5),
  "several patterns": z
    .string()
    .min(2)
    .max(5)
    .regex(/^[a-z]+$/)
    .startsWith("a"),
  includes: z.string().includes("a.b").max(12),
  "not ending": z.string().regex(/^(?!.*x$)[a-z]{1,3}$/),
  "a password": z.string().regex(/^(?=.*[0-9])(?=.*[a-z])[a-z0-9]{4,8}$/),
  record: z.record(z.string(), z.number()),
  "record of keys": z.record(z.enum(["a", "b"]), z.number()),
  "partial record": z.partialRecord(z.enum(["a", "b"]), z.number()),
  "record by pattern": z.record(z.string().regex(/^x/), z.number()),
  "record by length": z.record(z.string().min(3), z.number()),
  tuple: z.tuple([z.string(), z.number()]),
  "tuple with rest": z.tuple([z.string()], z.number()),
  nullable: z.string().nullable(),
  literals: z.literal(["a", 1, null]),
  "optional never": z.object({ a: z.never().optional(), b: z.int() }),
  any: z.object({ a: z.any(), b: z.unknown() }),
  defaults: z.object({ a: z.number().default(3), b: z.string().optional(), c: z.string().nullish() }),
  loose: z.looseObject({ a: z.string() }),
  catchall: z.object({ a: z.string() }).catchall(z.number()),
  intersection: z.object({ a: z.number() }).and(z.object({ b: z.string() })),
  "intersection of unions": z
    .union([z.object({ a: z.number() }), z.object({ c: z.null() })])
    .and(z.object({ b: z.boolean() })),
  "discriminated in discriminated": z.discriminatedUnion("t", [
    z.discriminatedUnion("k", [
      z.object({ t: z.literal("a"), k: z.literal(1) }),
      z.object({ t: z.literal("a"), k: z.literal(2) }),
    ]),
    z.object({ t: z.literal("b"), x: z.number() }),
  ]),
  recursive: Category,
  template: z.templateLiteral(["v", z.number(), z.enum(["a", "b"])]),
  json: z.json(),
  named: z.object({ a: z.string().meta({ id: "Named" }), b: z.array(z.boolean()).readonly() }),
};

/** What the older forms cannot express, so that zod leaves it out. */
const LOST = ["partial record", "record by pattern", "tuple", "tuple with rest"];

describe.each([["draft-2020-12"], ["draft-7"], ["openapi-3.0"], ["draft-4"]] as const)("zod, %s", (target) => {
  const isOld = target === "openapi-3.0" || target === "draft-4";
  test.each(Object.entries(ZOD).filter(([name]) => !isOld || !LOST.includes(name)))("%s", (_, type) => {
    const schema = z.toJSONSchema(type, { target }) as JsonSchema;
    const values = valuesOf(schema, 8);
    expect(values.length).toBeGreaterThan(1);
    expect(values.filter((value) => !type.safeParse(value).success)).toEqual([]);
    // Ajv knows neither.
    if (isOld) return;
    const isValid = validatorOf(schema);
    expect(values.filter((value) => !isValid(value))).toEqual([]);
  });
});
