/** Chat templates of downloaded models: the results of transformers in Python, within limits. */
import { readFileSync } from "node:fs";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { compileTemplate } from "../../../../src/engine/model/files/chat_template.ts";

const FOLDER = "test/fixtures/chat_templates";

interface Figure {
  readonly text?: string;
  readonly error?: string;
  readonly generated?: readonly string[];
}
interface Conversation {
  readonly messages: readonly object[];
  readonly tools?: readonly object[];
  readonly add_generation_prompt?: boolean;
  readonly variables?: Readonly<Record<string, unknown>>;
}
/** Written by render.py. */
interface Figures {
  readonly values: Readonly<Record<string, unknown>>;
  readonly messages: readonly object[];
  readonly templates: Readonly<Record<string, Readonly<Record<string, Figure>>>>;
  readonly constructs: readonly Figure[];
}

function read<T>(name: string): T {
  return JSON.parse(readFileSync(`${FOLDER}/${name}`, "utf8")) as T;
}

const figures = read<Figures>("figures.json");
const conversations = read<Readonly<Record<string, Conversation>>>("conversations.json");
const constructs = read<readonly string[]>("constructs.json");
const { messages } = figures;

function render(source: string, values: object): Figure {
  const given = { bos_token: "<bos>", eos_token: "<eos>", tools: null, documents: null, add_generation_prompt: true };
  const { text, generated } = compileTemplate(source)({ ...given, ...values });
  return generated.length > 0 ? { text, generated: generated.map(([start, end]) => text.slice(start, end)) } : { text };
}

/** Where transformers raises an error, ours must too: the words may differ. */
function expectFigure(source: string, values: object, figure: Figure): void {
  if (figure.error === undefined) expect(render(source, values)).toEqual(figure);
  else expect(() => render(source, values)).toThrow(/^Cannot format the conversation with the chat template: /);
}

/** Constructs that end in an error here: a result by chance, and a slice of a literal, which Jinja2 takes as undefined before it runs. */
const UNSUPPORTED: readonly RegExp[] = [/random/, /\[1\.0:\]/];

beforeEach(() => {
  vi.useFakeTimers({ now: new Date(2026, 2, 5, 9, 7, 3), toFake: ["Date"] });
});
afterEach(() => {
  vi.useRealTimers();
});

describe("renders as transformers does", () => {
  const cases = Object.entries(figures.templates).flatMap(([template, texts]) =>
    Object.entries(texts).map(([name, figure]) => ({ template, name, figure })),
  );
  test.each(cases)("$template: $name", ({ template, name, figure }) => {
    const { variables, ...conversation } = conversations[name]!;
    expectFigure(readFileSync(`${FOLDER}/${template}.jinja`, "utf8"), { ...conversation, ...variables }, figure);
  });

  const rows = constructs.map((source, i) => ({ source, figure: figures.constructs[i]! }));
  const isSupported = ({ source }: { source: string }) => !UNSUPPORTED.some((pattern) => pattern.test(source));
  test.each(rows.filter(isSupported))("$source", ({ source, figure }) => {
    expectFigure(source, { ...figures.values, messages }, figure);
  });
  test.each(rows.filter((row) => !isSupported(row)))("is not supported, and says so: $source", ({ source }) => {
    expect(() => render(source, { ...figures.values, messages })).toThrow(/^Cannot (read|format) .*chat_template/s);
  });

  test.each(["{{ 'a' | replace }}", "{{ 'a' | replace('x') }}", "{{ 'a' | replace(new='x') }}"])(
    "%s lacks a text",
    (source) => {
      expect(() => compileTemplate(source)({})).toThrow("replace takes an old and a new text");
    },
  );

  test("raise_exception ends with the template's message", () => {
    expect(() => compileTemplate("{{ raise_exception('no roles') }}")({})).toThrow(
      /^Cannot format the conversation with the chat template: no roles \(chat_template\)\./,
    );
  });

  test("names the file of the template", () => {
    expect(() => compileTemplate("{% if %}", { file: "m/chat_template.jinja" })).toThrow(/m\/chat_template\.jinja/);
  });

  const PRIVATE_USE = Array.from({ length: 0xf8ff - 0xe000 + 1 }, (_, i) => String.fromCharCode(0xe000 + i)).join("");
  test.each([
    ["the first private use characters", "\uE000\uE001\uE002\uE010\uE011"],
    ["all but two of them", PRIVATE_USE.slice(0, -2)],
    ["all but two of them, and the last", PRIVATE_USE.slice(2)],
  ])("generation blocks are found in messages that hold %s", (_, content) => {
    const source = "{{ messages[0].content }}{% generation %}{{ messages[0].content }}{% endgeneration %}!";
    const { text, generated } = compileTemplate(source)({ messages: [{ role: "user", content }] });
    expect(text).toBe(`${content}${content}!`);
    expect(generated).toEqual([[content.length, 2 * content.length]]);
  });

  test.each<[string, string, [number, number][]]>([
    ["{% filter trim %}{% generation %} a {% endgeneration %}{% endfilter %}|", "a|", [[0, 2]]],
    ["{% set x %}{% generation %}ab{% endgeneration %}{% endset %}{{ x | length }}", "2", [[0, 1]]],
    ["{% set x %}b{% generation %}a{% endgeneration %}{% endset %}{{ x }}", "ba", [[1, 2]]],
  ])("%s: a text that is filtered has no marks", (source, text, generated) => {
    expect(compileTemplate(source)({})).toEqual({ text, generated });
  });

  test("private use characters of the template itself are no marks", () => {
    const { text, generated } = compileTemplate("\uE000{% generation %}a\uE001{% endgeneration %}\uE001")({});
    expect({ text, generated }).toEqual({ text: "\uE000a\uE001\uE001", generated: [[1, 3]] });
  });

  test("messages that leave no two private use characters free are refused", () => {
    const render = compileTemplate("{% generation %}{% endgeneration %}");
    const content = PRIVATE_USE.slice(1);
    expect(() => render({ messages: [{ content }] })).toThrow(/the messages hold 6399 private use characters/);
    expect(compileTemplate("{{ messages[0].content }}")({ messages: [{ content }] }).text).toBe(content);
  });
});

const NESTED = (body: string) =>
  `{% set ns = namespace(v=['x' ~ 'y']) %}{% for i in range(60) %}${body}{% endfor %}{{ ns.v | tojson | length }}`;

const LONG =
  "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(19) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";

describe("ends with an error, in a bounded time and memory", () => {
  test.each<[string, string]>([
    ["a long loop", "{% for i in range(10 ** 12) %}{% endfor %}"],
    ["a loop without a body", "{% for i in range(100000000000) %}{% endfor %}"],
    ["loops in loops", `${"{% for i in range(1000000) %}".repeat(4)}{{ i }}${"{% endfor %}".repeat(4)}`],
    [
      "loops in loops without a body",
      `{% set r = range(1000000) %}${"{% for i in r %}".repeat(4)}${"{% endfor %}".repeat(4)}`,
    ],
    ["a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"],
    [
      "a macro that calls itself twice",
      "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
    ["a text that doubles", NESTED("{% set ns.v = (ns.v | string) ~ (ns.v | string) %}")],
    ["a list that doubles", NESTED("{% set ns.v = ns.v + ns.v %}")],
    ["a list that holds itself twice", NESTED("{% set ns.v = [ns.v, ns.v] %}")],
    ["a mapping that holds itself twice", NESTED("{% set ns.v = {'a': ns.v, 'b': ns.v} %}")],
    [
      "namespaces that hold each other twice",
      `{% set a0 = namespace(x=1) %}${Array.from({ length: 50 }, (_, i) => `{% set a${i + 1} = namespace(x=a${i}, y=a${i}) %}`).join("")}{{ a50 }}`,
    ],
    ["a namespace that holds itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"],
    [
      "many long texts",
      "{% set ns = namespace(v=[], s='x') %}{% for i in range(23) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(100000) %}{% set ns.v = ns.v + [ns.s ~ i] %}{% endfor %}",
    ],
    [
      "a tuple that doubles",
      NESTED("{% set ns.v = (ns.v, ns.v) + (ns.v, ns.v) %}{% set ns.t = (ns.t or (1, 2)) + (ns.t or (1, 2)) %}"),
    ],
    ...["ns.s.split('x')", "ns.s.strip('x')", "ns.s.find('y')", "ns.s.upper()", "ns.s[::2]", "ns.s[5]", "'y' in ns.s"]
      .concat(["ns.s | trim", "ns.s | title", "ns.s | int", "ns.s | replace('x', 'y')", "ns.s | length"])
      .map((use): [string, string] => [
        `a long text, ${use}`,
        `${LONG}{% for i in range(400000) %}{% set x = ${use} %}{% endfor %}`,
      ]),
    ["a deep indent", `{% set d = {'a': 1} %}${"{% set d = {'a': d} %}".repeat(60)}{{ d | tojson(indent=9999999) }}`],
    ["a test of Object's", "{{ [1] | select('constructor') | list }}"],
    ["a filter of Object's", "{{ 1 | constructor }}"],
    [
      "a list that filters copy",
      "{% set r = range(10000) %}{% for i in range(1000) %}{% set x = r | list %}{% endfor %}",
    ],
    ...[
      "('[' ~ ns.s).format(1)",
      "('{[' ~ ns.s).format(1)",
      "(('{0[' * 9999) ~ ns.s).format(1)",
      "ns.s % ()",
      "('%(' * 9999) % {}",
    ]
      .concat(["'%.1s' % ns.s", "'{:.1}'.format(ns.s)", "ns.s | wordcount", "ns.s | urlencode", "ns.s | truncate(9)"])
      .concat([
        "ns.s | int(0, 36)",
        "[1] | map(attribute=ns.s) | list",
        "[1] | sort(attribute=ns.s)",
        "'{:.1000f}'.format(1e300)",
      ])
      .map((use): [string, string] => [
        `a format or a path, ${use}`,
        `${LONG}{% for i in range(100000) %}{% for j in range(4) %}{% set x = ${use} if true %}{% endfor %}{% endfor %}`,
      ]),
    [
      "a method that was looked up once",
      `${LONG}{% set f = ns.s.upper %}{% for i in range(100000) %}{% set x = f() %}{% endfor %}`,
    ],
    ["a tuple that holds itself twice, as a key", NESTED("{% set ns.v = (ns.v, ns.v) %}{% set d = {ns.v: 1} %}")],
    [
      "the keys of a long dict",
      "{% set d = dict(range(100000) | batch(2)) %}{% for i in range(100000) %}{% set x = d.keys() %}{% endfor %}",
    ],
    [
      "ints that square",
      "{% set ns = namespace(v=3) %}{% for i in range(60) %}{% set ns.v = ns.v * ns.v %}{% endfor %}",
    ],
    ["a loop that calls itself", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"],
    ["generators in generators", NESTED("{% set ns.v = ns.v | map('list') %}".repeat(300))],
    ["deep brackets", `{{ ${"[".repeat(200_000)}${"]".repeat(200_000)} }}`],
    ["a source without end", "{# #}".repeat(300_000)],
  ])("%s", (_, source) => {
    const started = performance.now();
    expect(() => compileTemplate(source)({ messages })).toThrow(/^Cannot (read|format) .*\(chat_template\)/s);
    // Generous for a busy machine: the limits take half a second or less.
    expect(performance.now() - started).toBeLessThan(15_000);
  });
});

test("a conversation of a thousand messages is far from the limits", () => {
  const long = Array.from({ length: 1000 }, (_, i) => ({
    role: i % 2 ? "assistant" : "user",
    content: `${i} ${"word ".repeat(400)}`,
  }));
  const source =
    "{% for m in messages %}{% if loop.index0 > 0 and messages[loop.index0 - 1].role == m.role %}!{% endif %}<|{{ m.role }}|>{{ m.content.strip() | trim }}{% if messages | length > 3 and not loop.last %}\n{% endif %}{% endfor %}";
  const { text } = compileTemplate(source)({ messages: long });
  const { role, content } = long[999]!;
  expect(text.match(/<\|/g)).toHaveLength(1000);
  expect(text.endsWith(`<|${role}|>${content.trim()}`)).toBe(true);
  expect(text.length).toBeGreaterThan(2_000_000);
});
