/** JSON that is written as it was read: digits, forms of numbers, the order of keys. */
import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  jsonEntries,
  jsonField,
  mergedJson,
  numberText,
  parseJson,
  stringifyJson,
  withBigInts,
} from "../../src/leaves/json.ts";

const again = (text: string) => stringifyJson(parseJson(text));

/** Texts of JSON without white space, whose keys do not repeat. */
const NUMBER = fc.oneof(
  fc.bigInt({ min: -(10n ** 40n), max: 10n ** 40n }).map(String),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => JSON.stringify(value)),
  fc.tuple(fc.integer(), fc.stringMatching(/^\d{1,25}$/)).map(([whole, decimals]) => `${whole}.${decimals}`),
  fc.tuple(fc.integer(), fc.constantFrom("e", "E", "e+", "e-"), fc.nat(999)).map((parts) => parts.join("")),
  fc.constantFrom("-0", "-0.0", "0.0", "1.0", "1e3", "1E400", "0.10", "9007199254740993"),
);
const KEY = fc.oneof(
  fc.nat(20).map(String),
  fc.string(),
  fc.constantFrom("__proto__", "constructor", "4294967295", "01", "-1", "toJSON"),
);
const { text: TEXT } = fc.letrec<{ text: string }>((tie) => ({
  text: fc.oneof(
    { maxDepth: 4 },
    NUMBER,
    fc.string({ unit: "binary" }).map((value) => JSON.stringify(value)),
    fc.constantFrom("true", "false", "null"),
    fc.array(tie("text"), { maxLength: 4 }).map((items) => `[${items.join(",")}]`),
    fc
      .uniqueArray(fc.tuple(KEY, tie("text")), { selector: ([key]) => key, maxLength: 5 })
      .map((members) => `{${members.map(([key, value]) => `${JSON.stringify(key)}:${value}`).join(",")}}`),
  ),
}));
const HELD = fc.oneof(
  TEXT.map((text) => `[${text}]`),
  TEXT.map((text) => `{"b":${text},"1":0}`),
);

describe("JSON without a loss", () => {
  test.each([
    '{"id":1234567890123456789}',
    '{"b":1,"10":2,"2":3}',
    '{"a":[1.0,1e3,-0,{"2":0.10,"1":1E+2}]}',
    "[18446744073709551615,-9223372036854775808,1e400]",
    '{"__proto__":{"x":1.0},"1":"\\"2\\":3.0"}',
  ])("writes %s as it was read", (text) => {
    expect(again(text)).toBe(text);
  });

  test("writes any JSON as it was read", () => {
    void fc.assert(
      fc.property(HELD, (text) => {
        expect(again(text)).toBe(text);
      }),
      { numRuns: 500 },
    );
  });

  test("reads the values of JSON.parse", () => {
    void fc.assert(
      fc.property(HELD, (text) => {
        expect(JSON.stringify(parseJson(text))).toBe(JSON.stringify(JSON.parse(text)));
      }),
    );
  });

  test("writes any value of JavaScript as JSON.stringify does", () => {
    void fc.assert(
      fc.property(fc.anything({ withDate: true, withTypedArray: true }), (value) => {
        expect(stringifyJson(value)).toBe(JSON.stringify(value));
      }),
    );
  });

  test("refuses what JSON.parse refuses", () => {
    expect(() => parseJson('{"a":01}')).toThrow(SyntaxError);
    expect(() => jsonField("a", '1,"b":2')).toThrow(SyntaxError);
  });

  test("takes the last of equal keys, in the place of the first", () => {
    expect(again('{"b":1.0,"1":{"x":1.0},"b":2,"1":{"x":1}}')).toBe('{"b":2,"1":{"x":1}}');
  });

  test("writes the value that an object has now", () => {
    const value = parseJson('{"2":1.0,"1":1e3,"a":1.0}') as Record<string, unknown>;
    value["2"] = 7;
    expect(stringifyJson(value)).toBe('{"2":7,"1":1e3,"a":1.0}');
    expect(stringifyJson(mergedJson(value, { "1": 5, more: true }))).toBe('{"2":7,"1":5,"a":1.0,"more":true}');
    value["3"] = 8;
    expect(stringifyJson(value)).toBe('{"2":7,"1":1e3,"a":1.0,"3":8}');
  });

  test("shows nothing of its notes", () => {
    expect(parseJson('{"b":1.0,"1":[1e3]}')).toStrictEqual({ b: 1, "1": [1000] });
    expect(structuredClone(parseJson('{"b":1.0,"1":1}'))).toStrictEqual({ "1": 1, b: 1 });
  });

  test("keeps a number alone in the object that holds it", () => {
    expect(stringifyJson(mergedJson({ name: "f" }, jsonField("arguments", "1e3")))).toBe(
      '{"name":"f","arguments":1e3}',
    );
  });

  test("merges any objects as a spread does", () => {
    void fc.assert(
      fc.property(fc.dictionary(KEY, NUMBER), fc.dictionary(KEY, NUMBER), (first, second) => {
        const [a, b] = [first, second].map(
          (it) =>
            parseJson(
              `{${Object.entries(it)
                .map(([key, value]) => `${JSON.stringify(key)}:${value}`)
                .join(",")}}`,
            ) as object,
        );
        expect({ ...mergedJson(a!, b!) }).toEqual({ ...a, ...b });
        const texts = { ...first, ...second };
        for (const [key, text] of Object.entries(texts))
          expect(numberText(mergedJson(a!, b!), key) ?? String(Number(text))).toBe(text);
      }),
    );
  });

  test("is indented as by JSON.stringify", () => {
    const text = '{"a":[1.0,{"2":[],"1":{}}],"b":{"c":[1,2]}}';
    const shown = JSON.stringify(JSON.parse(text), null, 2);
    expect(stringifyJson(JSON.parse(text), 2)).toBe(shown);
    expect(stringifyJson(parseJson(text), 2).replace(/\s/g, "")).toBe(text);
    expect(stringifyJson(parseJson('{"a":[1.0,{"x":[1]}],"b":{}}'), 2)).toBe(
      JSON.stringify(JSON.parse('{"a":[1,{"x":[1]}],"b":{}}'), null, 2).replace("1,", "1.0,"),
    );
  });

  test("lists entries in the order of the source", () => {
    expect(jsonEntries(parseJson('{"b":1,"10":2,"2":3}') as object)).toEqual([
      ["b", 1],
      ["10", 2],
      ["2", 3],
    ]);
    expect(numberText(parseJson("[1.0]") as object, 0)).toBe("1.0");
    expect(numberText([1], 0)).toBeUndefined();
  });

  test("makes bigints of integers that a number does not hold, and of no others", () => {
    const value = withBigInts(parseJson('{"a":[9007199254740993,1.0,1e20,1e400,3],"b":{"c":-9007199254740993}}')) as {
      a: unknown[];
      b: { c: unknown };
    };
    expect([...value.a, value.b.c]).toEqual([9007199254740993n, 1, 1e20, Infinity, 3, -9007199254740993n]);
    expect(stringifyJson(value)).toBe('{"a":[9007199254740993,1.0,1e20,1e400,3],"b":{"c":-9007199254740993}}');
  });

  test("takes time linear in the text, and little of it", () => {
    const ids = `[${"12345,".repeat(1_000_000)}0]`;
    const started = performance.now();
    parseJson(ids);
    expect(performance.now() - started).toBeLessThan(2000);
    const deep = `${"[".repeat(100_000)}1.0${"]".repeat(100_000)}`;
    expect(() => parseJson(deep)).not.toThrow();
    expect(() => parseJson(`["${"\\\\".repeat(200_000)}",1.0]`)).not.toThrow();
  });
});
