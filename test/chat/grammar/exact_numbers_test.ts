/** Numbers of schemas as they are written: constants, enums, limits, names that look like numbers. */
import { describe, expect, test } from "vitest";
import { accepts } from "../../../src/chat/grammar/collections.ts";
import { type JsonSchema, schemaRule } from "../../../src/chat/grammar/schema.ts";
import { parseJson } from "../../../src/leaves/json.ts";

const takes = (schema: string, text: string) => accepts(schemaRule(parseJson(schema) as JsonSchema), text);

describe("constants", () => {
  test.each<[schema: string, valid: string[], invalid: string[]]>([
    ['{"const":1234567890123456789}', ["1234567890123456789"], ["1234567890123456800", "1234567890123456788"]],
    ['{"type":"integer","const":9007199254740993}', ["9007199254740993"], ["9007199254740992"]],
    ['{"enum":[1.0,1e3,{"b":1,"10":2,"2":3.0}]}', ["1.0", "1e3", '{"b":1,"10":2,"2":3.0}'], ["1", "1000"]],
    [
      '{"anyOf":[{"const":9007199254740993},{"const":9007199254740995}]}',
      ["9007199254740993", "9007199254740995"],
      ["9007199254740996"],
    ],
    ['{"allOf":[{"enum":[9007199254740993,2]},{"enum":[9007199254740992,2.0]}]}', ["2"], ["9007199254740993"]],
    ['{"allOf":[{"const":9007199254740993},{"description":"an id"}]}', ["9007199254740993"], ["9007199254740992"]],
    ['{"const":1,"enum":[1.0,2]}', ["1"], ["2"]],
    ['{"$ref":"#/$defs/id","$defs":{"id":{"const":9007199254740993}}}', ["9007199254740993"], ["9007199254740992"]],
    [
      '{"type":"array","uniqueItems":true,"items":{"enum":[9007199254740993,1.0]}}',
      ["[9007199254740993,1.0]"],
      ["[9007199254740992]"],
    ],
  ])("%s", (schema, valid, invalid) => {
    for (const text of valid) expect([text, takes(schema, text)]).toEqual([text, true]);
    for (const text of invalid) expect([text, takes(schema, text)]).toEqual([text, false]);
  });

  test("of branches that a double would make one differ", () => {
    expect(takes('{"oneOf":[{"const":9007199254740993},{"const":9007199254740992}]}', "9007199254740992")).toBe(true);
    expect(() => takes('{"oneOf":[{"const":1},{"const":1.0}]}', "1")).toThrow("its branches must differ");
    expect(() => takes('{"allOf":[{"const":9007199254740993},{"const":9007199254740992}]}', "1")).toThrow(
      "two parts of allOf",
    );
  });
});

test("an integer without limits may have 64 bits", () => {
  for (const text of ["18446744073709551615", "-9223372036854775808"])
    expect(takes('{"type":"integer"}', text)).toBe(true);
});

test("properties keep the schema's order, whatever their names look like", () => {
  const schema =
    '{"type":"object","properties":{"b":{"type":"null"},"10":{"type":"null"},"2":{"type":"null"}},"required":["b","10","2"]}';
  expect(takes(schema, '{"b":null,"10":null,"2":null}')).toBe(true);
  expect(takes(schema, '{"2":null,"10":null,"b":null}')).toBe(false);
});

test.each(["minimum", "exclusiveMaximum"])(
  "a %s that a number does not hold is refused, unless nothing comes near it",
  (key) => {
    expect(() => takes(`{"type":"number","${key}":0.10000000000000000001}`, "1")).toThrow(
      "it has more digits than a number keeps (0.10000000000000000001)",
    );
    expect(() => takes(`{"type":"number","${key}":1.0}`, "1")).not.toThrow();
    expect(() => takes('{"type":"integer","maximum":18446744073709551615}', "7")).not.toThrow();
  },
);
