/**
 * Enforces the table of who may import whom, where the runtime (Node, Deno, a page) may be used, and that no files
 * import each other in a circle.
 */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

/** Files that every part may import, and that import each other alone. */
const LEAVES: readonly string[] = [
  "errors.ts",
  "nearest.ts",
  "node_module.ts",
  "random.ts",
  "registry.ts",
  "statistics.ts",
];

/** What each part of src/ may import besides itself and the {@link LEAVES}; `*` is everything. A part is a folder or a file. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  "errors.ts": [],
  "nearest.ts": [],
  "node_module.ts": [],
  "random.ts": [],
  "registry.ts": [],
  "statistics.ts": [],
  contract: [],
  compute: [],
  "protobuf.ts": [],
  http: [],
  data: ["contract"],
  chat: ["contract", "data"],
  config: ["data"],
  log: ["data", "http", "protobuf.ts"],
  task: ["chat", "contract", "data"],
  model: ["compute", "contract"],
  algorithm: ["compute", "contract", "data"],
  convert: ["config"],
  backend: ["algorithm", "compute", "config", "contract", "data", "model", "protobuf.ts"],
  loop: ["algorithm", "chat", "compute", "config", "contract", "data", "log", "task"],
  serve: ["chat", "compute", "config", "contract", "data", "http", "log", "model", "protobuf.ts"],
  cli: ["*"],
  "cli.ts": ["*"],
  "mod.ts": ["*"],
  "node.ts": ["*"],
};

/** Where `process`, `Deno`, node: modules, `globalThis` and `navigator.gpu` may appear. */
const RUNTIME_ALLOWED: readonly RegExp[] = [
  /^cli(\/|\.ts$)/,
  /^log\//,
  /^http\/listen\.ts$/,
  /^serve\/checkpoint\/(checkpoints|state_folder)\.ts$/,
  /^compute\/webgpu\/(adapter|nap)\.ts$/,
  /^model\/files\/disk\.ts$/,
  /^node_module\.ts$/,
];

const RUNTIME_USES: readonly (readonly [RegExp, string])[] = [
  // Only members that the runtime's object has: `process` is also a stage of the loop.
  [
    /(?<![.\w])process\.(argv|cwd|env|exit|exitCode|hrtime|kill|memoryUsage|nextTick|off|on|once|pid|platform|std\w+|versions?)\b/,
    "process",
  ],
  [/(?<![.\w])Deno\b/, "Deno"],
  // A registry under a symbol of ours is no use of the runtime, nor are its types.
  [/(?<![.\w])globalThis\b(?! as unknown as Record<symbol,| extends Record<)/, "globalThis"],
  [/(?<![.\w])navigator\b/, "navigator"],
  [/(?<![.\w])require\(/, "require"],
];

/** Every break of the rules in these sources (text by path within src/), one line each. */
function findViolations(sources: Readonly<Record<string, string>>): string[] {
  return Object.entries(sources).flatMap(([path, text]) => [
    ...importViolations(path, text),
    ...runtimeViolations(path, text),
  ]);
}

function importViolations(path: string, text: string): string[] {
  const from = partOf(path);
  const allowed = MAY_IMPORT[from];
  if (!allowed) return [`${path}: no rule for ${from}: add it to the table`];
  return filesImportedBy(path, text)
    .filter((target) => {
      const to = partOf(target);
      return to !== from && !LEAVES.includes(to) && !allowed.includes("*") && !allowed.includes(to);
    })
    .map((target) => `${path}: ${from} may not import ${target}`);
}

/** Paths within src/. */
function filesImportedBy(path: string, text: string): string[] {
  return importsOf(text)
    .filter((specifier) => specifier.startsWith("."))
    .map((specifier) => normalize(join(dirname(path), specifier)).replaceAll("\\", "/"));
}

/** Every set of files that reach each other by imports, types included, in the order of `sources`. */
function findCircles(sources: Readonly<Record<string, string>>): string[][] {
  const paths = Object.keys(sources);
  const imports = new Map(paths.map((path) => [path, filesImportedBy(path, sources[path]!)]));
  const reached = new Map(paths.map((path) => [path, reachableFrom(path, imports)]));
  const reaches = (from: string, to: string) => reached.get(from)!.has(to);
  const circleOf = (path: string) => paths.filter((other) => reaches(path, other) && reaches(other, path));
  return paths.map(circleOf).filter((circle, i) => circle[0] === paths[i]);
}

/** The files that imports lead to from `path`: itself only through a circle. */
function reachableFrom(path: string, imports: ReadonlyMap<string, readonly string[]>): Set<string> {
  const found = new Set<string>();
  const waiting = [path];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    for (const target of imports.get(next) ?? []) {
      if (found.has(target)) continue;
      found.add(target);
      waiting.push(target);
    }
  }
  return found;
}

function runtimeViolations(path: string, text: string): string[] {
  if (RUNTIME_ALLOWED.some((rule) => rule.test(path))) return [];
  const code = withoutCommentsAndStrings(text);
  const uses = RUNTIME_USES.filter(([pattern]) => pattern.test(code)).map(([, name]) => name);
  const modules = importsOf(text).filter((specifier) => specifier.startsWith("node:"));
  return [...uses, ...modules].map((name) => `${path}: may not touch the runtime: ${name}`);
}

function partOf(path: string): string {
  return path.split(/[\\/]/)[0]!;
}

/** Specifiers of static, re-exporting and dynamic imports, types included. */
function importsOf(text: string): string[] {
  const pattern =
    /(?:^|[;}\n])\s*(?:import|export)\b[^;"'`]*?["']([^"'\n]+)["']|\bimport\(\s*["']([^"'\n]+)["']/g;
  return [...withoutComments(text).matchAll(pattern)].map((match) => match[1]! ?? match[2]!);
}

const TOKENS =
  /\/\*[\s\S]*?\*\/|\/\/[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\/[a-z]*(?=[\s,;).\]])/g;

function withoutComments(text: string): string {
  return text.replace(TOKENS, (token) => (/^\/[*/]/.test(token) ? " " : token));
}

/** Keeps the code inside `${}` of template strings. */
function withoutCommentsAndStrings(text: string): string {
  return text.replace(TOKENS, (token) =>
    token.startsWith("`") ? [...token.matchAll(/\$\{([^}]*)\}/g)].map((match) => match[1]).join(" ") : '""',
  );
}

describe("findViolations() finds made-up ones", () => {
  const cases: [path: string, text: string, found: string | undefined][] = [
    [
      "loop/train.ts",
      'import type { Local } from "../backend/local.ts";',
      "loop may not import backend/local.ts",
    ],
    ["loop/train.ts", 'import type { Backend } from "../contract/backend.ts";', undefined],
    [
      "loop/a.ts",
      'import {\n  a,\n  b,\n} from "../backend/tinker.ts";',
      "loop may not import backend/tinker.ts",
    ],
    ["serve/app.ts", 'export { run } from "../loop/run.ts";', "serve may not import loop/run.ts"],
    [
      "compute/device.ts",
      'const d = await import("../data/pack.ts");',
      "compute may not import data/pack.ts",
    ],
    ["compute/device.ts", 'import { ConfigError } from "../errors.ts";', undefined],
    ["data/order.ts", 'import { seedOf } from "../random.ts";', undefined],
    ["random.ts", 'import { Rows } from "./data/rows.ts";', "random.ts may not import data/rows.ts"],
    ["data/types.ts", 'import "../algorithm/kl.ts";', "data may not import algorithm/kl.ts"],
    ["algorithm/a.ts", 'import { x } from "../model/x.ts";', "algorithm may not import model/x.ts"],
    ["model/a.ts", '// import { x } from "../loop/x.ts";\nimport { y } from "./y.ts";', undefined],
    ["novelty/a.ts", "", "no rule for novelty"],
    [
      "data/a.ts",
      'import { readFile } from "node:fs/promises";',
      "may not touch the runtime: node:fs/promises",
    ],
    ["data/a.ts", "const x = process.env.HOME;", "may not touch the runtime: process"],
    ["data/a.ts", "const x = `$" + "{process.env.HOME}`;", "may not touch the runtime: process"],
    ["data/a.ts", "if (typeof Deno !== 'undefined') run();", "may not touch the runtime: Deno"],
    ["compute/webgpu/device.ts", "const gpu = navigator.gpu;", "may not touch the runtime: navigator"],
    [
      "compute/webgpu/device.ts",
      "const r = globalThis as unknown as R;",
      "may not touch the runtime: globalThis",
    ],
    ["task/a.ts", "const t = globalThis as unknown as Record<symbol, T>;", undefined],
    ["data/a.ts", '/* process.env */ const x = "Deno.args"; // navigator.gpu', undefined],
    ["loop/a.ts", "const r = stages.process.name; const { process } = stages; process(r);", undefined],
    ["cli/process/io.ts", 'import { x } from "../backend/local.ts"; process.exit(Deno.pid);', undefined],
    ["model/files/disk.ts", 'import { open } from "node:fs/promises";', undefined],
  ];
  test.each(cases)("%s: %s", (path, text, found) => {
    const violations = findViolations({ [path]: text });
    if (found === undefined) expect(violations).toEqual([]);
    else expect(violations).toEqual([expect.stringContaining(found)]);
  });
});

describe("findCircles() finds made-up ones", () => {
  const cases: [name: string, sources: Record<string, string>, circles: string[][]][] = [
    ["none in a chain", { "a.ts": 'import "./b.ts";', "b.ts": 'import "./c.ts";', "c.ts": "" }, []],
    [
      "none where two import a third",
      { "a.ts": 'import "./c.ts";', "b.ts": 'import "./c.ts";', "c.ts": "" },
      [],
    ],
    ["a file that imports itself", { "a.ts": 'import "./a.ts";' }, [["a.ts"]]],
    [
      "types alone",
      { "a.ts": 'import type { B } from "./b.ts";', "b.ts": 'import type { A } from "./a.ts";' },
      [["a.ts", "b.ts"]],
    ],
    [
      "over three files and two folders, with a re-export and a dynamic import",
      {
        "entry.ts": 'import "./x/a.ts";',
        "x/a.ts": 'export { b } from "../y/b.ts";',
        "y/b.ts": 'const c = await import("./c.ts");',
        "y/c.ts": 'import {\n  a,\n} from "../x/a.ts";',
        "leaf.ts": "",
      },
      [["x/a.ts", "y/b.ts", "y/c.ts"]],
    ],
    [
      "two that share no file",
      {
        "a.ts": 'import "./b.ts";\nimport "./c.ts";',
        "b.ts": 'import "./a.ts";',
        "c.ts": 'import "./d.ts";',
        "d.ts": 'import "./c.ts";',
      },
      [
        ["a.ts", "b.ts"],
        ["c.ts", "d.ts"],
      ],
    ],
    ["none in a comment", { "a.ts": 'import "./b.ts";', "b.ts": '// import "./a.ts";' }, []],
  ];
  test.each(cases)("%s", (_, sources, circles) => {
    expect(findCircles(sources)).toEqual(circles);
  });
});

/** Circles that wait to be broken. Only ever remove from this list. */
const KNOWN_CIRCLES: readonly (readonly string[])[] = [
  ["algorithm/correction/host.ts", "algorithm/correction/metrics.ts"],
  ["model/files/tokenizer.ts", "model/files/tokenizer_alphabet.ts"],
  ["model/files/disk.ts", "model/files/folder.ts"],
  ["cli/run/backend.ts", "cli/run/tinker.ts"],
  ["log/page/run_folder.ts", "log/page/run_lines.ts"],
];

const SRC = fileURLToPath(new URL("../src", import.meta.url));
const PATHS = readdirSync(SRC, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name.endsWith(".ts"))
  .map((entry) => join(entry.parentPath ?? entry.path, entry.name));
const SOURCES = Object.fromEntries(
  PATHS.map((path) => [relative(SRC, path).replaceAll("\\", "/"), readFileSync(path, "utf8")]),
);

test("the sources keep to the table", () => {
  expect(PATHS.length).toBeGreaterThan(15);
  expect(findViolations(SOURCES)).toEqual([]);
});

test("no files of the sources import each other in a circle", () => {
  const isKnown = (circle: string[]) =>
    KNOWN_CIRCLES.some((known) => circle.every((path) => known.includes(path)));
  expect(findCircles(SOURCES).filter((circle) => !isKnown(circle))).toEqual([]);
});
