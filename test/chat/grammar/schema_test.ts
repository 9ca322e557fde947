/** Texts of a schema's grammar are valid by the schema, as Ajv judges, whatever tokens are drawn. */
import { describe, expect, test, vi } from "vitest";
import { Automaton, type ParseState } from "../../../src/chat/grammar/automaton.ts";
import { ANY_OBJECT } from "../../../src/chat/grammar/json.ts";
import {
  byteRanges as bytesOf,
  choiceRule,
  GrammarRule,
  literal,
  repeat,
  textUntil,
} from "../../../src/chat/grammar/rules.ts";
import { type JsonSchema, schemaRule } from "../../../src/chat/grammar/schema.ts";
import { GrammarConstraint } from "../../../src/chat/grammar/vocabulary.ts";
import { byteTokenizer, characterTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { chatTokenizer } from "../../fixtures/chat.ts";
import { dice, drawText, expectValidTexts, tokensOf } from "../../fixtures/random_schemas.ts";

describe("schemaRule()", () => {
  test("50 random schemas: every text that ends is valid", () => {
    const { ended, characters } = expectValidTexts(50);
    expect(ended).toBeGreaterThan(40);
    expect(characters).toBeGreaterThan(300);
  });

  test("any object, within the limit of length", () => {
    let ended = 0;
    const tokenizer = chatTokenizer();
    const tokens = tokensOf(tokenizer);
    for (let seed = 0; seed < 40; seed++) {
      const text = drawText(new GrammarConstraint(ANY_OBJECT, tokenizer), { tokenizer, tokens, roll: dice(seed) });
      if (text === undefined) continue;
      ended++;
      expect(typeof JSON.parse(text)).toBe("object");
    }
    expect(ended).toBeGreaterThan(20);
  });

  const TREE = {
    $defs: {
      node: {
        type: "object",
        properties: { value: { type: "integer" }, next: { anyOf: [{ $ref: "#/$defs/node" }, { type: "null" }] } },
        required: ["value", "next"],
      },
    },
    $ref: "#/$defs/node",
  };
  const SHAPES = {
    oneOf: [
      { type: "object", properties: { kind: { const: "circle" }, r: { type: "number" } }, required: ["kind", "r"] },
      {
        type: "object",
        properties: { kind: { const: "square" }, side: { type: "number" } },
        required: ["kind", "side"],
      },
    ],
  };
  test.each<[name: string, schema: JsonSchema, accepts: string[], refuses: string[]]>([
    [
      "an object",
      { type: "object", properties: { a: { type: "integer" }, b: {} }, required: ["a"] },
      ['{"a": 1}', '{\n  "a": 1,\n  "b": [true, {}]\n}', '{"a":0}'],
      ["{}", '{"b": 1}', '{"a": 1.5}', '{"a": 01}', '{"a": 1,}', '{"a": 1, "c": 2}', "[]"],
    ],
    [
      "optional members alone",
      { type: "object", properties: { a: {}, b: {} } },
      ["{}", '{"b": 1}', '{"a": 1, "b": 2}'],
      ['{, "b": 1}', '{"b": 1, "a": 2}'],
    ],
    [
      "strings by characters",
      { type: "string", minLength: 2, maxLength: 2 },
      ['"é🙂"', '"\\n\\u00e9"'],
      ['"a"', '"abc"', '"\\ud83d\\ude00"', '"a\n"'],
    ],
    [
      "integers within limits",
      { type: "integer", minimum: 8, maximum: 123 },
      ["8", "9", "10", "99", "123"],
      ["7", "124", "08", "-8", "1", "1230", "8.0"],
    ],
    [
      "numbers within limits",
      { type: "number", exclusiveMinimum: 0, maximum: 1 },
      ["0.5", "1", "0.000001", "1.0"],
      ["0", "1.1", "-0.5", "0.0", "1e0", "."],
    ],
    [
      "numbers close to each other",
      { type: "number", minimum: 0.5, maximum: 0.5000000000001 },
      ["0.5", "0.500"],
      ["0.500000000001", "0.4", "0.6", "0"],
    ],
    [
      "integers without an upper limit",
      { type: "integer", minimum: 1 },
      ["1", "10", "999999999999999"],
      ["0", "-1", "01", "1.0", "1000000000000000"],
    ],
    [
      "numbers that no limit touches after some digits",
      { type: "number", minimum: -12.5 },
      ["7.25", "0.000000000001", "-12.5", "-12.49", "-9", "100.0"],
      ["-12.51", "-13", "-100", "1.", "00", "1.0000000000000"],
    ],
    [
      "a pattern's dot ends no line",
      { type: "string", pattern: "^a.b$" },
      ['"axb"', '"aéb"', '"a\u2027b"', '"a🙂b"', '"a\\tb"', '"a\\u000bb"', '"a\\u2030b"', '"a\\u202Ab"'],
      ['"a\\nb"', '"a\\rb"', '"a\\u000ab"', '"a\\u000Db"', '"a\\u2028b"', '"a\\u2029b"', '"a\u2028b"', '"a\u2029b"'],
    ],
    ["patterns", { type: "string", pattern: "^[A-Z]{2}\\d+$" }, ['"AB1"', '"AB123"'], ['"A1"', '"AB"', '"ab1"']],
    ["patterns without anchors", { type: "string", pattern: "a|^b" }, ['"xay"', '"bx"'], ['"xb"', '""']],
    [
      "a recursive reference",
      TREE,
      ['{"value": 1, "next": {"value": 2, "next": null}}'],
      ['{"value": 1}', '{"value": 1, "next": 2}'],
    ],
    [
      "branches told apart by a constant",
      SHAPES,
      ['{"kind": "circle", "r": 1}', '{"kind": "square", "side": 2}'],
      ['{"kind": "circle", "side": 1}'],
    ],
    [
      "what stands beside anyOf",
      {
        type: "object",
        properties: { a: { type: "integer" } },
        required: ["a"],
        anyOf: [
          { properties: { b: { const: 1 } }, required: ["b"] },
          { properties: { c: { const: 2 } }, required: ["c"] },
        ],
      },
      ['{"a": 5, "b": 1}', '{"a": 5, "c": 2}'],
      ['{"a": 5}', '{"b": 1}'],
    ],
    ["an enumeration of a type", { type: "string", enum: ["a", 1, null] }, ['"a"'], ["1", "null"]],
    ["an enumeration within limits", { enum: ["a", "bb", 7], minLength: 2 }, ['"bb"'], ['"a"', "7"]],
    ["a constant that is in the enumeration", { const: "a", enum: ["a", "b"] }, ['"a"'], ['"b"']],
    ["OpenAPI's null", { type: "integer", nullable: true }, ["1", "null"], ['"a"']],
    ["multiples", { type: "integer", multipleOf: 15, minimum: 0 }, ["0", "15", "30", "150"], ["1", "-15", "16", "015"]],
    ["decimal multiples", { type: "number", multipleOf: 0.25 }, ["0.5", "-1.25", "3", "0.00"], ["0.3", "1.125", "1e1"]],
    ["multiples of hundreds", { type: "integer", multipleOf: 1200 }, ["0", "1200", "-2400"], ["120", "00", "1800"]],
    [
      "a pattern and a length",
      { type: "string", pattern: "^(ab)+$", minLength: 3, maxLength: 5 },
      ['"abab"'],
      ['"ab"', '"ababab"', '"aba"'],
    ],
    [
      "several patterns",
      { type: "string", allOf: [{ pattern: "^a" }, { pattern: "b$" }] },
      ['"ab"', '"axxb"'],
      ['"a"', '"b"', '"ba"'],
    ],
    [
      "look-aheads",
      { type: "string", pattern: "^(?!.*aa)(?=[a-c]{3})[a-z]+$" },
      ['"abc"', '"abcd"'],
      ['"aab"', '"ab"', '"abd"', '"bcaa"'],
    ],
    [
      "a look-ahead without an end",
      { type: "string", pattern: "^(?!no)" },
      ['"yes"', '"n"', '""'],
      ['"no"', '"nothing"'],
    ],
    [
      "a look-ahead in the last group",
      { type: "string", pattern: "^P(?:W|(?=1|T1)1?(T(?=1)1*)?)$" },
      ['"P1"', '"PT1"', '"PW"'],
      ['"P"', '"PT"'],
    ],
    ["lazy counts and codes", { type: "string", pattern: "^a+?\\x62*?\\u0063$" }, ['"abc"', '"aac"'], ['"bc"']],
    ["bars and parentheses in a class", { type: "string", pattern: "^[(|)]x$|^y$" }, ['"(x"', '"|x"', '"y"'], ['"x"']],
    [
      "a date",
      { type: "string", format: "date" },
      ['"2024-02-29"', '"1999-12-31"'],
      ['"2023-02-29"', '"2023-13-01"', '"x"'],
    ],
    [
      "an address",
      { format: "ipv6" },
      ['"::"', '"1::"', '"::1"', '"2001:db8::ff00:42"'],
      ['"1:2"', '":::"', '"1::2::3"'],
    ],
    ["an unknown format", { type: "string", format: "color" }, ['"red"'], ["1"]],
    [
      "a map by a pattern of names",
      { type: "object", patternProperties: { "^x": { type: "null" } }, additionalProperties: false },
      ["{}", '{"xa": null, "x": null}'],
      ['{"a": null}', '{"xa": 1}'],
    ],
    [
      "a pattern of names beside properties",
      { properties: { xa: {}, b: {} }, patternProperties: { "^x": { type: "null" } } },
      ['{"xa": null, "b": 1}'],
      ['{"xa": 1}'],
    ],
    [
      "names of an enumeration",
      { propertyNames: { enum: ["a", "b"] }, additionalProperties: { type: "null" }, required: ["b"] },
      ['{"b": null}', '{"b": null, "a": null}'],
      ['{"a": null}', '{"c": null}', '{"b": 1}'],
    ],
    [
      "names within limits",
      { type: "object", propertyNames: { minLength: 2 }, additionalProperties: { type: "null" } },
      ['{"ab": null}', "{}"],
      ['{"a": null}'],
    ],
    [
      "numbers of members of a map",
      { type: "object", minProperties: 1, maxProperties: 2 },
      ['{"a": 1}', '{"a": 1, "b": 2}'],
      ["{}", '{"a": 1, "b": 2, "c": 3}'],
    ],
    [
      "numbers of properties",
      { properties: { a: {}, b: {}, c: {} }, required: ["b"], minProperties: 2, maxProperties: 2 },
      ['{"a": 1, "b": 2}', '{"b": 1, "c": 2}'],
      ['{"b": 1}', '{"a": 1, "b": 2, "c": 3}', '{"a": 1, "c": 2}'],
    ],
    [
      "items behind named ones",
      { prefixItems: [{ type: "null" }], items: { type: "integer" }, minItems: 2, maxItems: 3 },
      ["[null, 1]", "[null,1,2]"],
      ["[null]", "[1]", "[null, 1, 2, 3]", "[null, null]"],
    ],
    ["a tuple of draft 7", { items: [{ type: "null" }], additionalItems: false }, ["[null]"], ["[]", "[null, 1]"]],
    ["fewer items than are named", { prefixItems: [{}, {}], maxItems: 1 }, ["[1]"], ["[1, 2]"]],
    [
      "a set",
      { type: "array", items: { enum: ["a", "b", "c"] }, uniqueItems: true, minItems: 1, maxItems: 2 },
      ['["a"]', '["a", "c"]', '["b","c"]'],
      ["[]", '["a", "a"]', '["a", "b", "c"]'],
    ],
    ["properties that have no value", { properties: { a: false, b: { not: {} }, c: {} } }, ['{"c": 1}'], ['{"a": 1}']],
    ["limits of draft 4", { type: "integer", minimum: 3, exclusiveMinimum: true }, ["4"], ["3"]],
    [
      "parts that limit the same",
      {
        allOf: [
          { type: ["integer", "null"], minimum: 2 },
          { type: "number", minimum: 5, maximum: 9 },
        ],
      },
      ["5", "9"],
      ["2", "null", "10", "5.5"],
    ],
    [
      "unions in two parts",
      { allOf: [{ anyOf: [{ type: "string" }, { type: "null" }] }, { anyOf: [{ type: "null" }, { const: "a" }] }] },
      ['"a"', "null"],
      ['"b"'],
    ],
    [
      "a recursive reference in allOf",
      {
        $defs: { node: { properties: { next: { allOf: [{ $ref: "#/$defs/node" }], default: null } } } },
        $ref: "#/$defs/node",
      },
      ["{}", '{"next": {"next": {}}}'],
      ['{"next": 1}'],
    ],
    [
      "nine patterns at once, of which the last tells bytes apart",
      {
        allOf: Array.from({ length: 9 }, (_, i) => ({
          type: "string",
          pattern: i < 8 ? `^[a-z]{0,${i + 9}}$` : "^[ab]+$",
        })),
      },
      ['"a"', '"abba"'],
      ['"c"', '"ac"', '""', '"A"'],
    ],
    [
      "items that one part names and another one limits",
      { allOf: [{ type: "array", prefixItems: [{}] }, { items: { type: "integer" } }] },
      ["[1]", "[1, 2]"],
      ['["a"]', "[1, true]"],
    ],
    [
      "a pattern of names in one part, beside the properties of a closed one",
      {
        allOf: [
          { properties: { a: {}, xb: {} }, additionalProperties: false },
          { patternProperties: { "^x": { type: "null" } } },
        ],
      },
      ['{"a": 1, "xb": null}'],
      ['{"xb": 1}', '{"xa": null}'],
    ],
    [
      "unevaluated properties of all parts",
      { unevaluatedProperties: false, allOf: [{ properties: { a: {} } }] },
      ['{"a": 1}'],
      ['{"b": 1}'],
    ],
    [
      "unevaluated properties beside branches",
      { anyOf: [{ properties: { a: {} }, required: ["a"] }, { properties: { b: {} } }], unevaluatedProperties: false },
      ['{"a": 1}', '{"b": 1}', "{}"],
      ['{"c": 1}'],
    ],
    [
      "null that one part alone allows",
      { allOf: [{ type: "integer", nullable: true }, { type: "integer" }] },
      ["1"],
      ["null"],
    ],
    [
      "a reference beside allOf, within a branch",
      {
        $defs: { text: { type: "string" } },
        anyOf: [{ $ref: "#/$defs/text", allOf: [{ maxLength: 1 }] }],
        minLength: 1,
      },
      ['"a"'],
      ['"ab"', '""'],
    ],
    [
      "null beside a union that does not hold it",
      { type: "string", nullable: true, anyOf: [{ type: "string", maxLength: 1 }] },
      ['"a"'],
      ["null", '"ab"'],
    ],
    [
      "a reference or null, as OpenAPI writes it",
      { nullable: true, allOf: [{ $ref: "#/$defs/text" }], $defs: { text: { type: "string" } } },
      ['"a"', "null"],
      ["1"],
    ],
    [
      "open limits of two parts",
      {
        allOf: [
          { type: "integer", exclusiveMinimum: 2 },
          { exclusiveMinimum: 3, exclusiveMaximum: 6 },
        ],
      },
      ["4", "5"],
      ["3", "6"],
    ],
    [
      "null that both parts allow",
      { allOf: [{ type: "integer", nullable: true }, { minimum: 2 }] },
      ["2", "null"],
      ["1"],
    ],
    ["null beside an enumeration without it", { type: "integer", nullable: true, enum: [1] }, ["1"], ["null"]],
    [
      "properties without unevaluated ones",
      { properties: { a: {} }, unevaluatedProperties: false, "x-note": 1 },
      ['{"a": 1}'],
      ['{"b": 1}'],
    ],
  ])("%s", (_, schema, accepted, refused) => {
    const automaton = new Automaton(schemaRule(schema));
    expect(accepted.filter((text) => !accepts(automaton, text))).toEqual([]);
    expect(refused.filter((text) => accepts(automaton, text))).toEqual([]);
  });

  test.each<[schema: unknown, path: string, says: RegExp]>([
    [{ type: "array", uniqueItems: true }, "schema.uniqueItems", /this keyword is not supported/],
    [
      { type: "object", properties: { a: { type: "object", patternProperties: { "^a": {}, "^b": {} } } } },
      "schema.properties.a.patternProperties",
      /only one pattern of names is supported/,
    ],
    [{ not: {} }, "schema.not", /not supported/],
    [{ type: "float" }, "schema.type", /no such type/],
    [{ type: "number", multipleOf: 1 / 3 }, "schema.multipleOf", /only decimal numbers of up to two digits/],
    [{ type: "number", multipleOf: 4, minimum: 5, maximum: 7 }, "schema.multipleOf", /no multiple lies within/],
    [{ $ref: "#/$defs/x" }, "schema.$ref", /leads nowhere/],
    [{ $ref: "http://x/y" }, "schema.$ref", /within the schema/],
    [{ oneOf: [{ type: "string" }, { type: "string", maxLength: 2 }] }, "schema.oneOf", /must differ/],
    [{ type: "string", pattern: "(?<=a)b" }, "schema.pattern", /look-arounds/],
    [{ type: "string", pattern: "(a)\\1" }, "schema.pattern", /\\1 is not supported/],
    [{ type: "integer", minimum: 3, maximum: 2 }, "schema", /no number/],
    [{ type: "array", minItems: 3, maxItems: 2 }, "schema", /no length/],
    [{ type: "object", properties: { a: false }, required: ["a"] }, "schema.properties.a", /no value/],
    [{ allOf: [{ type: "string" }, { type: "integer" }] }, "schema.type", /different things/],
    [
      { allOf: [{ properties: { a: {} } }, { additionalProperties: false }] },
      "schema.additionalProperties",
      /limits a property that another one names, a/,
    ],
    [
      { allOf: [{ additionalProperties: false }, { patternProperties: { "^x": {} } }] },
      "schema.additionalProperties",
      /limits properties for which another one has a pattern, \^x/,
    ],
    [
      {
        patternProperties: { "^x": {} },
        allOf: [{ $ref: "#/$defs/closed" }],
        $defs: { closed: { additionalProperties: { type: "null" } } },
      },
      "schema.additionalProperties",
      /another one has a pattern/,
    ],
    [
      { allOf: [{ properties: { a: {} }, unevaluatedProperties: false }, { properties: { b: {} } }] },
      "schema.additionalProperties",
      /limits a property that another one names, b/,
    ],
    [
      { allOf: [{ prefixItems: [{}] }, { unevaluatedItems: false, type: "array" }] },
      expect.stringMatching(/prefixItems/) as never,
      /no value is valid/,
    ],
    [{ prefixItems: [{}], items: [{}] }, "schema.prefixItems", /beside a list of items/],
    [{ oneOf: [{ nullable: true, anyOf: [{ type: "string" }] }, { type: "null" }] }, "schema.oneOf", /must differ/],
    [{ oneOf: [{ type: "string", nullable: true }, { type: "null" }] }, "schema.oneOf", /must differ/],
    [7, "schema", /must be an object/],
    [{ anyOf: [true], oneOf: [{ type: "string" }] }, "schema.oneOf", /together with anyOf/],
    [{ const: 1, enum: [2] }, "schema.enum", /together with const/],
    [{ type: "constructor" }, "schema.type", /no such type/],
    [{ type: "array", items: false, minItems: 2 }, "schema.minItems", /allows none/],
    [{ $ref: "#node" }, "schema.$ref", /within the schema/],
    [{ $ref: "#/%" }, "schema.$ref", /leads nowhere/],
    [{ $ref: "#/constructor" }, "schema.$ref", /leads nowhere/],
    [
      { $defs: { a: { allOf: [{ $ref: "#/$defs/a" }] } }, $ref: "#/$defs/a" },
      "schema.$ref",
      /no finite value is valid/,
    ],
    [{ allOf: Array(6000).fill({}) }, expect.stringMatching(/allOf/) as never, /too many schemas/],
    [{ type: "number", minimum: 1e-13, maximum: 2e-13 }, "schema", /no number/],
    [{ type: "string", pattern: "^((a?){1000}){1000}$" }, "schema.pattern", /may be empty cannot be counted/],
    [{ type: "string", pattern: "^(a{100}){100}$" }, "schema.pattern", /come to 1000 in all, not 10000/],
    [{ type: "string", pattern: "^.{0,1000}.{0,1000}$" }, "schema.pattern", /come to 1000 in all, not 2000/],
    [{ type: "string", pattern: "(".repeat(60) }, "schema.pattern", /groups may lie 50 deep/],
    [{ type: "string", pattern: "^[é]$" }, "schema.pattern", /no ASCII character/],
    [{ type: "string", pattern: "^a{3,2}$" }, "schema.pattern", /ends before it begins/],
    [{ type: "string", pattern: "^(a(?=b))c$" }, "schema.pattern", /nothing may follow a group with a look-ahead/],
    [{ type: "string", pattern: "^(a(?=b))*$" }, "schema.pattern", /look-ahead cannot be counted/],
    [{ type: "string", pattern: "^a(?!^b)c$" }, "schema.pattern", /\^ is not supported here/],
    [{ type: "string", pattern: "^(?=a)b$" }, "schema.pattern", /no text matches/],
    [{ type: "string", pattern: "^a$", minLength: 2 }, "schema", /no text keeps its pattern/],
    [{ type: "string", pattern: 7 }, "schema.pattern", /must be a text/],
    [{ type: "string", pattern: "^(?=.{1,250}$)([ab]{1,60}c)*$" }, "schema.pattern", /more than 10000 states/],
    [{ type: "object", minProperties: 2 }, "schema.minProperties", /more than 1 needs properties with names/],
    [{ properties: { a: {} }, minProperties: 2 }, "schema", /no number of its properties/],
    [{ propertyNames: { maxLength: 1 }, required: ["ab"] }, "schema.properties.ab", /no value is valid/],
    [{ type: "array", items: { type: "string" }, uniqueItems: true }, "schema.uniqueItems", /of an enum/],
    [{ items: { enum: [1, 2] }, uniqueItems: true, minItems: 3 }, "schema.minItems", /fewer values/],
    [{ $ref: "#/$defs/a", $defs: { a: { items: { $ref: "#/$defs/a" }, minItems: 1 } } }, "schema.$ref", /no finite/],
    [
      {
        properties: { a: { $ref: "#/$defs/a" } },
        $defs: {
          a: { properties: { b: { $ref: "#/$defs/b" } }, required: ["b"] },
          b: { anyOf: [{ $ref: "#/$defs/a" }] },
        },
      },
      "schema.properties.a.$ref",
      /no finite value is valid/,
    ],
  ])("refuses %j", (schema, path, says) => {
    expect(() => schemaRule(schema as JsonSchema)).toThrow(says);
    expect(() => schemaRule(schema as JsonSchema)).toThrow(expect.objectContaining({ path }));
  });
});

function accepts(automaton: Automaton, text: string): boolean {
  let state: ParseState | null = automaton.start;
  for (const byte of new TextEncoder().encode(text)) state = state && automaton.step(state, byte);
  return state?.isComplete ?? false;
}

describe("the work of one mask is bounded", () => {
  /** All bytes, and words enough for a mask to look at many texts. */
  const words = [
    ...Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte)),
    ...Array.from({ length: 5000 }, (_, i) => new TextEncoder().encode(`${i % 2 ? " " : ""}${i.toString(26)}word`)),
    new TextEncoder().encode('","'),
  ];
  const tokenizer = { ...byteTokenizer(), vocabSize: words.length + 1, eosTokenIds: [words.length] };
  const wide = { ...tokenizer, tokenBytes: (id: number) => words[id] };
  const times = <T>(count: number, make: (i: number) => T) => Array.from({ length: count }, (_, i) => make(i));
  const strings = (i: number) => ({ type: "array", items: { type: "string", maxLength: 200 + i } });

  test.each<[string, JsonSchema]>([
    ["120 arrays", { anyOf: times(120, strings) }],
    ["200 arrays", { anyOf: times(200, strings) }],
    ["arrays within anyOf", { anyOf: times(14, (j) => ({ anyOf: times(14, (i) => strings(14 * j + i)) })) }],
    [
      "150 objects",
      {
        anyOf: times(150, (i) => ({
          type: "object",
          properties: { a: { type: "string", maxLength: 200 + i } },
          required: ["a"],
        })),
      },
    ],
  ])("%s of strings of many lengths are refused where a text goes on in all of them", (_, schema) => {
    const state = new GrammarConstraint(schemaRule(schema), wide).start();
    const mask = new Uint32Array(Math.ceil(wide.vocabSize / 32));
    const draw = () => {
      for (const byte of new TextEncoder().encode(
        JSON.stringify(schema).includes("object") ? '{"a": "abcdef' : '["abcd","efgh',
      )) {
        state.fill(mask);
        state.advance(byte);
      }
    };
    expect(draw).toThrow(/the next token can be read in too many ways/);
  });

  test.each<[string, JsonSchema, string]>([
    ["one array of long strings", strings(100), '["abcd", "efgh"]'],
    ["10 arrays", { anyOf: times(10, strings) }, '["abcd", "efgh"]'],
    [
      "an object of 200 properties",
      {
        type: "object",
        properties: Object.fromEntries(times(200, (i) => [`p${i}`, { type: "string", maxLength: 500 }])),
      },
      '{"p0": "abc", "p7": "x"}',
    ],
  ])("%s is not", (_, schema, text) => {
    const state = new GrammarConstraint(schemaRule(schema), wide).start();
    const mask = new Uint32Array(Math.ceil(wide.vocabSize / 32));
    for (const byte of new TextEncoder().encode(text)) {
      state.fill(mask);
      expect(mask[byte >> 5]! & (1 << (byte & 31))).not.toBe(0);
      state.advance(byte);
    }
  });
});

describe("GrammarConstraint", () => {
  test("allows exactly the tokens whose bytes go on, and the end where the text is complete", () => {
    const tokenizer = chatTokenizer();
    const state = new GrammarConstraint(
      new GrammarRule(() => [literal("the an"), literal("the and"), literal("then")]),
      tokenizer,
    ).start();
    const mask = new Uint32Array(Math.ceil(tokenizer.vocabSize / 32));
    const allowed = () => {
      state.fill(mask);
      const ids = Array.from({ length: tokenizer.vocabSize }, (_, id) => id);
      return ids
        .filter((id) => (mask[id >> 5]! >>> (id & 31)) & 1)
        .map((id) => tokenizer.decode([id], { skipSpecialTokens: false }));
    };
    expect(allowed().sort()).toEqual(["t", "th", "the"]);
    state.advance(tokenizer.encode("the", { addSpecialTokens: false })[0]!);
    expect(allowed().sort()).toEqual([" ", "n"]);
    for (const token of tokenizer.encode(" an", { addSpecialTokens: false })) state.advance(token);
    expect(allowed().sort()).toEqual(["<|im_end|>", "d"]);
    expect(() => state.advance(tokenizer.encode("x", { addSpecialTokens: false })[0]!)).toThrow(
      /its constraint forbids/,
    );
  });

  test("allows what each token alone would lead to, however tokens begin alike, whatever their order", () => {
    const roll = dice(5);
    const random = Array.from({ length: 600 }, () =>
      Array.from({ length: 1 + roll(9) }, () => "ab\0é"[roll(4)]!).join(""),
    );
    const single = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i));
    const texts = [...random, ...single, "aaaa", "aaaa\0", "aaaab", "aaa", "aaa\0"];
    const bytes = texts.map((text) => new TextEncoder().encode(text));
    const [vocabSize, end] = [texts.length + 1, texts.length];
    const tokenizer = { ...byteTokenizer(), vocabSize, eosTokenIds: [end], tokenBytes: (id: number) => bytes[id] };
    const rule = choiceRule(...random.slice(0, 60).map((text) => literal(`${text}aab`)));
    const [automaton, state] = [new Automaton(rule), new GrammarConstraint(rule, tokenizer).start()];
    const mask = new Uint32Array(Math.ceil(vocabSize / 32));
    let at: ParseState = automaton.start;
    for (let drawn = 0; drawn < 6 && !at.isComplete; drawn++) {
      state.fill(mask);
      const after = bytes.map((own) => own.reduce((to: ParseState | null, byte) => to && automaton.step(to, byte), at));
      const allowed = texts.map((_, id) => ((mask[id >> 5]! >>> (id & 31)) & 1) === 1);
      expect(allowed).toEqual(after.map((to) => to !== null));
      const next = after.flatMap((to, id) => (to ? [id] : []));
      const token = next[roll(next.length)]!;
      state.advance(token);
      at = after[token]!;
    }
    expect(at).not.toBe(automaton.start);
    // Each place that tokens lead to is visited once, because those that begin alike stand together.
    const prefixes = new Set(bytes.flatMap((own) => Array.from(own, (_, i) => own.slice(0, i + 1).join())));
    const steps = vi.spyOn(Automaton.prototype, "step");
    new GrammarConstraint(repeat(bytesOf([0, 255])), tokenizer).start().fill(mask);
    expect(steps).toHaveBeenCalledTimes(prefixes.size);
    steps.mockRestore();
  });

  test("a mask that is asked for again and again is computed once, whatever states come between", () => {
    const tokenizer = byteTokenizer();
    const constraint = new GrammarConstraint(choiceRule(literal("a".repeat(200))), tokenizer);
    const [start, other] = [constraint.start(), constraint.start()];
    const mask = new Uint32Array(Math.ceil(tokenizer.vocabSize / 32));
    start.fill(mask);
    const steps = vi.spyOn(Automaton.prototype, "step");
    for (let i = 0; i < 150; i++) {
      other.advance(97);
      other.fill(mask);
      steps.mockClear();
      start.fill(mask);
      expect(steps).not.toHaveBeenCalled();
    }
    steps.mockRestore();
  });

  test("two sequences of one constraint do not disturb each other", () => {
    const tokenizer = byteTokenizer();
    const constraint = new GrammarConstraint(new GrammarRule(() => [literal("ab")]), tokenizer);
    const [one, other] = [constraint.start(), constraint.start()];
    one.advance(97);
    expect(() => one.advance(97)).toThrow();
    expect(() => other.advance(97)).not.toThrow();
  });

  test("a grammar without texts is refused, where it begins or where it leads to nothing", () => {
    expect(() => new GrammarConstraint(choiceRule(), byteTokenizer())).toThrow(/no text is valid/);
    const state = new GrammarConstraint(choiceRule([...literal("a"), choiceRule()]), byteTokenizer()).start();
    expect(() => state.advance(97)).toThrow(/forbids/);
    const dead = new GrammarConstraint(choiceRule([...literal("a"), bytesOf()]), byteTokenizer()).start();
    dead.advance(97);
    expect(() => dead.fill(new Uint32Array(9))).toThrow(/no text that is valid/);
  });

  test("a vocabulary without the characters of JSON is refused", () => {
    expect(() => new GrammarConstraint(ANY_OBJECT, characterTokenizer("0123+="))).toThrow(/no token for a character/);
    const endless = { ...byteTokenizer(), eosTokenIds: [] };
    expect(() => new GrammarConstraint(ANY_OBJECT, endless)).toThrow(/has no end token/);
    const { tokenBytes, ...without } = byteTokenizer();
    expect(tokenBytes?.(65)).toEqual(Uint8Array.of(65));
    expect(() => new GrammarConstraint(ANY_OBJECT, without)).toThrow(/no bytes of their own/);
  });
});

test("thousands of optional properties take no stack, and properties named like methods are own ones", () => {
  const names = ["constructor", ...Array.from({ length: 3000 }, (_, i) => `p${i}`)];
  const properties = Object.fromEntries(names.map((name) => [name, { type: "null" }]));
  const automaton = new Automaton(schemaRule({ allOf: [{ properties }, { properties: { a: { type: "null" } } }] }));
  expect(accepts(automaton, '{"constructor": null, "p7": null, "p2999": null, "a": null}')).toBe(true);
  expect(["{", "{,}", '{"p7": null, "p6": null}'].filter((text) => accepts(automaton, text))).toEqual([]);
});

test("a grammar with deep nesting at one place takes no stack", () => {
  let rule = choiceRule(literal("a"));
  for (let i = 0; i < 15_000; i++) rule = choiceRule([rule, ...(i % 2 ? literal("b") : [])]);
  expect(accepts(new Automaton(rule), `a${"b".repeat(7500)}`)).toBe(true);
});

test("a place that leads to too many others is refused", () => {
  const rule = choiceRule(...Array.from({ length: 30_000 }, (_, i) => literal(`${i}`)));
  expect(() => new Automaton(rule)).toThrow(/too many ways \(more than 20000\)/);
});

test("states are forgotten within a reply, and the reply goes on", () => {
  const automaton = new Automaton(schemaRule({ type: "string", maxLength: 100_000 }));
  let state = automaton.step(automaton.start, 0x22)!;
  let most = 0;
  for (let i = 0; i < 10_000; i++) {
    state = automaton.step(state, 0x61)!;
    most = Math.max(most, automaton.size);
  }
  expect(most).toBeLessThan(9000);
  expect(automaton.step(state, 0x22)?.isComplete).toBe(true);
  expect(accepts(automaton, JSON.stringify("b".repeat(99)))).toBe(true);
});

test("integers share the states that no limit touches", () => {
  const automaton = new Automaton(schemaRule({ type: "array", items: { type: "integer", minimum: 0 } }));
  const numbers = Array.from({ length: 500 }, (_, i) => i * 7919);
  expect(accepts(automaton, JSON.stringify(numbers))).toBe(true);
  expect(automaton.size).toBeLessThan(100);
});

test("textUntil() ends at the first occurrence, whatever overlaps it", () => {
  const automaton = new Automaton(textUntil("<a<b"));
  expect(["<a<b", "x<a<a<b", "<<a<b", "<a<a<a<b"].filter((text) => !accepts(automaton, text))).toEqual([]);
  expect(["<a<", "", "<a<b<a<b", "<a<bx"].filter((text) => accepts(automaton, text))).toEqual([]);
});
