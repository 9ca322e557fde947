/** Texts of a schema's grammar are valid by the schema, as Ajv judges, whatever tokens are drawn. */
import { Ajv2020 } from "ajv/dist/2020.js";
import { describe, expect, test } from "vitest";
import { Automaton, type State } from "../../../src/chat/grammar/automaton.ts";
import { ANY_OBJECT } from "../../../src/chat/grammar/json.ts";
import { literal, Rule, textUntil } from "../../../src/chat/grammar/rules.ts";
import { type Schema, schemaRule } from "../../../src/chat/grammar/schema.ts";
import { GrammarConstraint } from "../../../src/chat/grammar/vocabulary.ts";
import type { Tokenizer } from "../../../src/contract/text.ts";
import { byteTokenizer, characterTokenizer } from "../../../src/model/files/tokenizer.ts";
import { uniformAt } from "../../../src/random.ts";
import { chatTokenizer } from "../../fixtures/chat.ts";

type Roll = (below: number) => number;

function dice(seed: number): Roll {
  let rolls = 0;
  return (below) => Math.floor(uniformAt(seed, rolls++) * below);
}

const MOST_TOKENS = 600;

/** The tokens by id, and those that close something. */
function tokensOf(tokenizer: Tokenizer) {
  const ids = Array.from({ length: tokenizer.vocabSize }, (_, id) => id);
  const texts = ids.map((id) => tokenizer.decode([id], { skipSpecialTokens: false }));
  return { ids, closes: ids.map((id) => tokenizer.eosTokenIds.includes(id) || '"}]0'.includes(texts[id]!)) };
}

interface Draws {
  readonly tokenizer: Tokenizer;
  readonly tokens: ReturnType<typeof tokensOf>;
  readonly roll: Roll;
}

/** Draws allowed tokens at random, those that close something more often. @returns undefined where the length ended it */
function drawText(
  constraint: GrammarConstraint,
  { tokenizer, tokens: { ids, closes }, roll }: Draws,
): string | undefined {
  const state = constraint.start();
  const mask = new Uint32Array(Math.ceil(tokenizer.vocabSize / 32));
  const drawn: number[] = [];
  while (drawn.length < MOST_TOKENS) {
    state.fill(mask);
    const allowed = ids.filter((id) => (mask[id >> 5]! >>> (id & 31)) & 1);
    const closing = allowed.filter((id) => closes[id]);
    const from = closing.length > 0 && roll(3) === 0 ? closing : allowed;
    const token = from[roll(from.length)]!;
    if (tokenizer.eosTokenIds.includes(token)) return tokenizer.decode(drawn);
    drawn.push(token);
    state.advance(token);
  }
  return undefined;
}

/** A schema of the supported keywords. */
function randomSchema(roll: Roll, depth = 0): Schema {
  const leaf = [
    () => ({ type: "string" }),
    () => ({ type: "string", minLength: roll(4), maxLength: 3 + roll(4) }),
    () => ({
      type: "string",
      pattern: ["^[a-c]{2,4}$", "^\\d{3}-\\d{2}$", "b+", "^(on|off)?$", "^[^x]\\.\\w*$"][roll(5)],
    }),
    () => ({ type: "integer" }),
    () => ({ type: "integer", minimum: roll(50) - 25, maximum: 25 + roll(2000) }),
    () => ({ type: "integer", exclusiveMinimum: -roll(300), maximum: 9007199254740991 }),
    () => ({ type: "number" }),
    () => ({ type: "number", minimum: -1.5, exclusiveMaximum: 0.25 + roll(4) }),
    () => ({ type: ["boolean", "null"] }),
    () => ({ enum: ["red", 'gr"een', 3, null, { a: [1] }] }),
    () => ({ const: "é\n" }),
    () => true,
  ];
  if (depth > 2 || roll(3) > 0) return leaf[roll(leaf.length)]!() as Schema;
  const sub = () => randomSchema(roll, depth + 1);
  const inner = [
    () => ({ type: "array", items: sub(), minItems: roll(3), maxItems: 2 + roll(3) }),
    () => ({ type: "array", items: sub() }),
    () => ({ type: "array", prefixItems: [sub(), sub()], minItems: 2, items: false }),
    () => ({ anyOf: [sub(), sub()] }),
    () => ({ oneOf: [{ type: "string" }, { type: "integer" }, { type: "array", items: sub() }] }),
    () => ({ type: "object", additionalProperties: sub() }),
    () => ({
      allOf: [["a", "b"], ["c"]].map((names) => ({
        ...randomObject(roll, { sub, names }),
        additionalProperties: true,
      })),
    }),
  ];
  const at = roll(inner.length + 3);
  return at < inner.length ? inner[at]!() : randomObject(roll, { sub, names: ["a", "b", "long name", "é"] });
}

function randomObject(roll: Roll, { sub, names }: { sub: () => Schema; names: string[] }) {
  const shown = names.filter(() => roll(3) > 0);
  return {
    type: "object",
    properties: Object.fromEntries(shown.map((name) => [name, sub()])),
    required: shown.filter(() => roll(2) === 0),
    ...(shown.length > 0 && roll(2) === 0 && { additionalProperties: false }),
  };
}

const ajv = new Ajv2020({ strict: false, validateSchema: false, code: { optimize: false } });

describe("schemaRule()", () => {
  test("500 random schemas: every text that ends is valid", () => {
    const vocabularies = [byteTokenizer(), chatTokenizer()].map((tokenizer) => ({
      tokenizer,
      tokens: tokensOf(tokenizer),
    }));
    let ended = 0;
    let characters = 0;
    for (let seed = 0; seed < 500; seed++) {
      const roll = dice(seed);
      const schema = randomSchema(roll);
      const vocabulary = vocabularies[seed % 2]!;
      const constraint = new GrammarConstraint(schemaRule(schema), vocabulary.tokenizer);
      const text = drawText(constraint, { ...vocabulary, roll });
      if (text === undefined) continue;
      ended++;
      characters += text.length;
      const validate = ajv.compile(schema);
      expect(validate(JSON.parse(text)), `${JSON.stringify(schema)} ${text}`).toBe(true);
    }
    expect(ended).toBeGreaterThan(400);
    expect(characters).toBeGreaterThan(5000);
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
  test.each<[name: string, schema: Schema, accepts: string[], refuses: string[]]>([
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
  ])("%s", (_, schema, accepted, refused) => {
    const automaton = new Automaton(schemaRule(schema));
    expect(accepted.filter((text) => !accepts(automaton, text))).toEqual([]);
    expect(refused.filter((text) => accepts(automaton, text))).toEqual([]);
  });

  test.each<[schema: unknown, path: string, says: RegExp]>([
    [{ type: "array", uniqueItems: true }, "schema.uniqueItems", /this keyword is not supported/],
    [
      { type: "object", properties: { a: { type: "object", patternProperties: {} } } },
      "schema.properties.a.patternProperties",
      /not supported/,
    ],
    [{ not: {} }, "schema.not", /not supported/],
    [{ type: "float" }, "schema.type", /no such type/],
    [{ type: "number", multipleOf: 0.5 }, "schema.multipleOf", /only 1/],
    [{ $ref: "#/$defs/x" }, "schema.$ref", /leads nowhere/],
    [{ $ref: "http://x/y" }, "schema.$ref", /within the schema/],
    [{ oneOf: [{ type: "string" }, { type: "string", maxLength: 2 }] }, "schema.oneOf", /must differ/],
    [{ type: "string", pattern: "(?=a)" }, "schema.pattern", /look-arounds/],
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
    [7, "schema", /must be an object/],
  ])("refuses %j", (schema, path, says) => {
    expect(() => schemaRule(schema as Schema)).toThrow(says);
    expect(() => schemaRule(schema as Schema)).toThrow(expect.objectContaining({ path }));
  });
});

function accepts(automaton: Automaton, text: string): boolean {
  let state: State | null = automaton.start;
  for (const byte of new TextEncoder().encode(text)) state = state && automaton.step(state, byte);
  return state?.isComplete ?? false;
}

describe("GrammarConstraint", () => {
  test("allows exactly the tokens whose bytes go on, and the end where the text is complete", () => {
    const tokenizer = chatTokenizer();
    const state = new GrammarConstraint(
      new Rule(() => [literal("the an"), literal("the and"), literal("then")]),
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

  test("two sequences of one constraint do not disturb each other", () => {
    const tokenizer = byteTokenizer();
    const constraint = new GrammarConstraint(new Rule(() => [literal("ab")]), tokenizer);
    const [one, other] = [constraint.start(), constraint.start()];
    one.advance(97);
    expect(() => one.advance(97)).toThrow();
    expect(() => other.advance(97)).not.toThrow();
  });

  test("a vocabulary without the characters of JSON is refused", () => {
    expect(() => new GrammarConstraint(ANY_OBJECT, characterTokenizer("0123+="))).toThrow(/no token for a character/);
    const { tokenBytes, ...without } = byteTokenizer();
    expect(tokenBytes?.(65)).toEqual(Uint8Array.of(65));
    expect(() => new GrammarConstraint(ANY_OBJECT, without)).toThrow(/no bytes of their own/);
  });
});

test("textUntil() ends at the first occurrence, whatever overlaps it", () => {
  const automaton = new Automaton(textUntil("<a<b"));
  expect(["<a<b", "x<a<a<b", "<<a<b", "<a<a<a<b"].filter((text) => !accepts(automaton, text))).toEqual([]);
  expect(["<a<", "", "<a<b<a<b", "<a<bx"].filter((text) => accepts(automaton, text))).toEqual([]);
});
