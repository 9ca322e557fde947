import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { type ESTree, parseSync, Visitor } from "vite";
import { describe, expect, test } from "vitest";

/**
 * The rules of names and language that AGENTS.md states, over every file of src/. A fault names the file and line, the
 * rule, and what to write in its place. Each file is parsed once (by the parser of vite, because TypeScript 7 has none
 * that a test can call in its own process).
 */

/** Folders and files whose exports carry the names that users write, so that a second registry may have the same ones. */
const REGISTRIES: readonly [path: RegExp, reason: string][] = [
  [/^src\/engine\/algorithm\/advantage\/estimators\//, "estimators, by the names of settings"],
  [/^src\/engine\/algorithm\/loss\/losses\//, "losses, by the names of settings"],
  [/^src\/engine\/model\/files\/jinja\/\w+_filters\.ts$/, "filters, by Jinja's names"],
];

/** Names that several files export on purpose, with the reason. */
const SHARED_NAMES: Readonly<Record<string, string>> = {
  Recorded: "a public name of grpu/compute and one of grpu/algorithm",
};

/** First words that leave a docstring without a subject, and what to write. */
const FRAGMENTS: readonly [pattern: RegExp, advice: string][] = [
  [/^Of /, 'begin with the subject or a verb: "A row\'s ...", "Returns the ...", "Counts of ..."'],
  [
    /^(What|Why|Who|Whose|Whom|Where|Which)\b(?!.*\?$)/,
    'name the thing: "Text that ...", "Reason for ...", "Position of ...", "Returns the ..."',
  ],
  [
    /^(As|By|With|Without|For|In|From|Like|Per|About|Into|Beyond|Between|Beside|Under|Until)\b/,
    'begin with the subject or a verb: "Names by ...", "Checks like ...", "Path from ..."',
  ],
];

/** Metaphors and turns that AGENTS.md rules out, in comments, identifiers and names of files. */
const PHRASES: readonly [pattern: RegExp, advice: string][] = [
  [/\b(is|are|was|were|be|been) told\b/i, "receives, reports, knows"],
  [/\banew\b/i, "again"],
  [/\bwhoever\b/i, "the caller, the user, the process that"],
  [/\b(thereof|therein|thereby|hereof|wherein|whence|thence|hence|hitherto|henceforth)\b/i, "plain words"],
  [/\b(ere|lest|nay|whilst|amongst|betwixt|akin|naught|aught|albeit|heretofore|forthwith)\b/i, "plain words"],
];
const METAPHORS: readonly [pattern: RegExp, advice: string][] = [
  [/^(seats?|seated)$/, "slot, binding slot"],
  [/^(riding|rides?|rider)$/, "pending, attached"],
  [/^(tells?|telling|told)$/, "report, notify"],
  [/^(naps?|napping)$/, "idle, yieldToEventLoop"],
  [/^(breathe|breath|breathing)$/, "yieldToEventLoop"],
  [/^(undelivered)$/, "retry cache"],
  [/^(greetings?|greeted|farewell)$/, "startup text, end of the run"],
  [/^(gifts?)$/, "returned values"],
  [/^(doomed|hopeless|forgiven)$/, "expired, not retryable, tolerated"],
];

/** Fields of public types, which keep their names. */
const PUBLIC_FIELDS = new Set(["undeliveredBytes"]);

/** Locals and parameters that say nothing of their value. */
const FILLERS = new Set(["it", "own", "known", "given", "one", "all", "thing", "things", "stuff"]);

type Sources = Readonly<Record<string, string>>;

interface Declared {
  readonly name: string;
  readonly start: number;
}

interface ParsedFile {
  readonly path: string;
  readonly text: string;
  readonly exports: readonly Declared[];
  /** Names of variables, parameters, functions, types and members that the file declares. */
  readonly declared: readonly Declared[];
  /** The part of `declared` that is local: variables and parameters. */
  readonly locals: readonly Declared[];
  readonly comments: readonly { readonly value: string; readonly start: number }[];
}

function parse(path: string, text: string): ParsedFile {
  const { program, comments, module } = parseSync(path, text);
  const imported = new Set(module.staticImports.flatMap((item) => item.entries.map((entry) => entry.localName.value)));
  const exports = module.staticExports
    .flatMap((item) => item.entries)
    .filter((entry) => entry.moduleRequest === null && entry.exportName.name !== null)
    .filter((entry) => !imported.has(entry.localName.name ?? ""))
    .map((entry) => ({ name: entry.exportName.name!, start: entry.exportName.start! }));
  const locals: Declared[] = [];
  const members: Declared[] = [];
  const bind = (pattern: unknown) => locals.push(...boundNames(pattern));
  const member = (key: unknown) => {
    const node = key as { type: string; name?: string; start: number };
    if (node?.type === "Identifier") members.push({ name: node.name!, start: node.start });
  };
  const parameters = (node: { params: readonly unknown[] }) => node.params.forEach(bind);
  new Visitor({
    VariableDeclarator: (node: ESTree.VariableDeclarator) => void bind(node.id),
    FunctionDeclaration: (node) => {
      parameters(node);
      member(node.id);
    },
    FunctionExpression: parameters,
    ArrowFunctionExpression: parameters,
    TSFunctionType: parameters,
    TSMethodSignature: (node) => {
      parameters(node);
      member(node.key);
    },
    TSDeclareFunction: parameters,
    TSEmptyBodyFunctionExpression: parameters,
    ClassDeclaration: (node) => member(node.id),
    MethodDefinition: (node) => member(node.key),
    PropertyDefinition: (node) => member(node.key),
    TSPropertySignature: (node) => member(node.key),
    TSInterfaceDeclaration: (node) => member(node.id),
    TSTypeAliasDeclaration: (node) => member(node.id),
  } as ConstructorParameters<typeof Visitor>[0]).visit(program);
  return { path, text, exports, locals, declared: [...locals, ...members], comments };
}

/** The names that a pattern binds: `{ a, b: [c], ...d }` binds a, c and d. */
function boundNames(pattern: unknown): Declared[] {
  const node = pattern as { type: string; start: number } & Record<string, unknown>;
  switch (node?.type) {
    case "Identifier":
      return [{ name: node.name as string, start: node.start }];
    case "ObjectPattern":
      return (node.properties as unknown[]).flatMap(boundNames);
    case "Property":
      return boundNames(node.value);
    case "ArrayPattern":
      return (node.elements as unknown[]).flatMap(boundNames);
    case "AssignmentPattern":
      return boundNames(node.left);
    case "RestElement":
      return boundNames(node.argument);
    default:
      return [];
  }
}

function findFaults(sources: Sources): string[] {
  const files = Object.entries(sources).map(([path, text]) => parse(path, text));
  return [...collisions(files), ...files.flatMap((file) => [...docstrings(file), ...phrases(file), ...fillers(file)])];
}

function collisions(files: readonly ParsedFile[]): string[] {
  const places = new Map<string, Map<string, string>>();
  for (const file of files) {
    if (REGISTRIES.some(([path]) => path.test(file.path))) continue;
    for (const { name, start } of file.exports) {
      if (!places.has(name)) places.set(name, new Map());
      places.get(name)!.set(file.path, lineOf(file, start));
    }
  }
  return [...places]
    .filter(([name, at]) => at.size > 1 && !(name in SHARED_NAMES))
    .map(([name, at]) => {
      const lines = [...at.values()];
      return `${lines[0]}: export \`${name}\` is also exported by ${lines.slice(1).join(" and ")}: name what each is`;
    });
}

function docstrings(file: ParsedFile): string[] {
  return file.comments.flatMap(({ value, start }) => {
    if (!value.startsWith("*")) return [];
    const text = proseOf(value);
    const fault = FRAGMENTS.find(([pattern]) => pattern.test(text));
    if (fault === undefined) return [];
    return [`${lineOf(file, start)}: docstring without a subject, "${text.slice(0, 40)}": ${fault[1]}`];
  });
}

function phrases(file: ParsedFile): string[] {
  const inComments = file.comments.flatMap(({ value, start }) =>
    PHRASES.filter(([pattern]) => pattern.test(proseOf(value))).map(
      ([pattern, advice]) =>
        `${lineOf(file, start)}: "${proseOf(value).match(pattern)![0]}" in a comment: write ${advice}`,
    ),
  );
  const inNames = file.declared.flatMap(({ name, start }) =>
    (PUBLIC_FIELDS.has(name) ? [] : metaphorsIn(name)).map(
      (advice) => `${lineOf(file, start)}: \`${name}\` is a metaphor: write ${advice}`,
    ),
  );
  const base = file.path.slice(file.path.lastIndexOf("/") + 1).replace(/\.ts$/, "");
  const inPath = metaphorsIn(base).map((advice) => `${file.path}:1: the file's name is a metaphor: write ${advice}`);
  return [...inPath, ...inComments, ...inNames];
}

function metaphorsIn(name: string): string[] {
  const words = name
    .replace(/([a-z\d])([A-Z])/g, "$1_$2")
    .toLowerCase()
    .split("_");
  return METAPHORS.filter(([pattern]) => words.some((word) => pattern.test(word))).map(([, advice]) => advice);
}

function fillers(file: ParsedFile): string[] {
  return file.locals
    .filter(({ name }) => FILLERS.has(name))
    .map(({ name, start }) => `${lineOf(file, start)}: local \`${name}\` says nothing: name its value`);
}

/** The words of a comment on one line, without stars and code in backquotes. */
function proseOf(comment: string): string {
  return comment
    .replace(/^\*+/, "")
    .replace(/\n\s*\*?\s*/g, " ")
    .replace(/`[^`]*`/g, "`code`")
    .trim();
}

function lineOf({ path, text }: ParsedFile, start: number): string {
  return `${path}:${text.slice(0, start).split("\n").length}`;
}

const SRC = fileURLToPath(new URL("../src", import.meta.url));
const SOURCES = Object.fromEntries(
  readdirSync(SRC, { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(".ts"))
    .map((path) => path.replaceAll("\\", "/"))
    .map((path) => [`src/${path}`, readFileSync(`${SRC}/${path}`, "utf8")]),
);

test("names and comments of src keep to the rules", () => {
  expect(Object.keys(SOURCES).length).toBeGreaterThan(500);
  expect(findFaults(SOURCES)).toEqual([]);
});

test("every shared name is exported twice", () => {
  for (const name of Object.keys(SHARED_NAMES)) {
    const places = Object.values(SOURCES).filter((text) => new RegExp(`^export [a-z ]*\\b${name}\\b`, "m").test(text));
    expect(places.length, name).toBeGreaterThan(1);
  }
});

describe("findFaults() finds made-up ones", () => {
  const cases: [title: string, sources: Sources, found: string | undefined][] = [
    ["a name of two files", { "src/a.ts": "export const x = 1;", "src/b.ts": "\nexport type x = 1;" }, "src/b.ts:2"],
    ["a re-export", { "src/a.ts": "export const x = 1;", "src/b.ts": 'export { x } from "./a.ts";' }, undefined],
    [
      "an import that is exported",
      { "src/a.ts": "export const x = 1;", "src/b.ts": 'import { x } from "./a.ts";\nexport { x };' },
      undefined,
    ],
    ["overloads", { "src/a.ts": "export function f(a: 1): 1;\nexport function f(a: 2): 2;" }, undefined],
    [
      "an estimator and a loss",
      {
        "src/engine/algorithm/loss/losses/gpg.ts": "export const gpg = 1;",
        "src/engine/algorithm/advantage/estimators/gpg.ts": "export const gpg = 1;",
      },
      undefined,
    ],
    ["Of", { "src/a.ts": "\n/** Of a row. */\nconst x = 1;" }, "src/a.ts:2: docstring"],
    ["What, on its second line", { "src/a.ts": "/**\n * What a row is.\n */\nconst x = 1;" }, "src/a.ts:1: docstring"],
    ["Where", { "src/a.ts": "/** Where a row lies. */\nconst x = 1;" }, "src/a.ts:1: docstring"],
    ["By", { "src/a.ts": "/** By name. */\nconst x = 1;" }, "src/a.ts:1: docstring"],
    ["Whether", { "src/a.ts": "/** Whether a row is trained on. */\nconst x = 1;" }, undefined],
    ["a subject", { "src/a.ts": "/** Tokens of a row. What else it has is dropped. */\nconst x = 1;" }, undefined],
    ["a comment that is no docstring", { "src/a.ts": "// Of a row.\nconst x = 1;" }, undefined],
    ["a turn", { "src/a.ts": "// The caller is\nconst y = 2;\n// The caller is told.\nconst x = 1;" }, "src/a.ts:3"],
    ["a turn over two lines", { "src/a.ts": "/** A row is\n * told. */\nconst x = 1;" }, '"is told" in a comment'],
    ["a turn in a string", { "src/a.ts": 'const x = "the caller is told";' }, undefined],
    ["a metaphor as a variable", { "src/a.ts": "const tellUser = 1;" }, "`tellUser` is a metaphor"],
    ["a metaphor as a field", { "src/a.ts": "interface A {\n  nap(): void;\n}" }, "src/a.ts:2: `nap`"],
    ["a metaphor as a file", { "src/a/nap.ts": "" }, "src/a/nap.ts:1: the file's name"],
    ["a word that has one in it", { "src/a.ts": "const snapshot = 1;" }, undefined],
    ["a filler", { "src/a.ts": "const own = 1;" }, "local `own` says nothing"],
    ["a parameter", { "src/a.ts": "f((it) => 1);" }, "local `it` says nothing"],
    ["a parameter of a type", { "src/a.ts": "type F = (given: number) => void;" }, "local `given` says nothing"],
    ["a binding", { "src/a.ts": "const { a: [own = 1], ...rest } = x;" }, "local `own` says nothing"],
    ["a field", { "src/a.ts": "interface A { all: number }\nconst { all: rows } = x;" }, undefined],
  ];
  test.each(cases)("%s", (_, sources, found) => {
    const faults = findFaults(sources);
    if (found === undefined) expect(faults).toEqual([]);
    else expect(faults).toEqual([expect.stringContaining(found)]);
  });
});
