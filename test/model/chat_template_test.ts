/** Chat templates of downloaded models: the library's results, within limits. */
import { Template } from "@huggingface/jinja";
import { describe, expect, test } from "vitest";
import { compileTemplate } from "../../src/model/files/chat_template.ts";

const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "  What is 1 + 1?\n" },
  { role: "assistant", content: null, tool_calls: [{ function: { name: "add", arguments: { a: 1 } } }] },
  { role: "tool", content: "2" },
];

describe("renders as the library does", () => {
  test.each([
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim if m.content else '' }}\n{% endfor %}",
    "{% for m in messages[::-1] %}{{ loop.index0 }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{%- set ns = namespace(last=0) %}{% for m in messages %}{% set ns.last = loop.index %}{% endfor %}{{ ns.last }}",
    "{% macro f(x, y=2) %}[{{ x }}:{{ y }}]{% endmacro %}{{ f(1) }}{{ f(1, y=3) }}",
    "{{ messages | tojson(indent=2) }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{{ range(5, 1, -2) | list }}{{ range(2, 9, 3) | list | join('-') }}",
    "{{ True and not False and none is none and None is none }}{{ strftime_now('%Y') }}",
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ undefined_name is defined }}",
    "{% for k, v in {'a': 1, 'b': [2, 3]}.items() %}{{ k }}={{ v }};{% else %}none{% endfor %}",
  ])("%s", (source) => {
    const values = { messages, add_generation_prompt: true };
    expect(compileTemplate(source)(values)).toBe(new Template(source).render(values));
  });

  test("raise_exception ends with the template's message", () => {
    expect(() => compileTemplate("{{ raise_exception('no roles') }}")({})).toThrow(
      /^Cannot format the conversation with the chat template: no roles\. \(chat_template\)/,
    );
  });
});

const NESTED = (body: string) =>
  `{% set ns = namespace(v=['x' ~ 'y']) %}{% for i in range(60) %}${body}{% endfor %}{{ ns.v | tojson | length }}`;

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
  const text = compileTemplate(source)({ messages: long });
  expect(text).toBe(new Template(source).render({ messages: long }));
  expect(text.length).toBeGreaterThan(2_000_000);
});
