/**
 * Enforces the table of who may import whom, where the runtime (Node, Deno, a page) may be used, and that neither files
 * nor folders import each other in a circle.
 */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

/** Files that every part may import, and that import each other alone. */
const LEAVES: readonly string[] = [
  "clock.ts",
  "errors.ts",
  "half.ts",
  "json.ts",
  "nearest.ts",
  "node_module.ts",
  "random.ts",
  "read_reply.ts",
  "recent_cache.ts",
  "registry.ts",
  "shape.ts",
  "statistics.ts",
  "utf8.ts",
];

/** What each part of src/ may import besides itself and the {@link LEAVES}; `*` is everything. A part is a folder or a file. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  "clock.ts": [],
  "errors.ts": [],
  "half.ts": [],
  "json.ts": [],
  "nearest.ts": [],
  "node_module.ts": [],
  "random.ts": [],
  "read_reply.ts": [],
  "recent_cache.ts": [],
  "registry.ts": [],
  "shape.ts": [],
  "statistics.ts": [],
  "utf8.ts": [],
  contract: [],
  compute: [],
  "protobuf.ts": [],
  http: [],
  data: ["contract"],
  chat: ["contract", "data"],
  config: ["algorithm", "data"],
  log: ["data", "http", "protobuf.ts"],
  task: ["chat", "contract", "data"],
  model: ["compute", "contract"],
  algorithm: ["compute", "contract", "data"],
  convert: ["algorithm", "config"],
  backend: ["algorithm", "compute", "config", "contract", "convert", "data", "model", "protobuf.ts"],
  loop: ["algorithm", "chat", "compute", "config", "contract", "data", "log", "task", "trace"],
  evaluation: ["contract", "data", "http", "loop"],
  trace: ["contract", "data"],
  gateway: ["chat", "contract", "data", "http", "trace"],
  service: ["chat", "contract", "data", "http", "loop", "task"],
  serve: ["chat", "compute", "config", "contract", "data", "http", "log", "model", "protobuf.ts"],
  run: [
    "algorithm",
    "backend",
    "chat",
    "compute",
    "config",
    "contract",
    "data",
    "evaluation",
    "gateway",
    "http",
    "log",
    "loop",
    "model",
    "serve",
    "service",
    "task",
    "trace",
    // For the modules of a user's, which import the package by its name.
    "mod.ts",
    "node.ts",
  ],
  cli: ["*"],
  "cli.ts": ["*"],
  "mod.ts": ["*"],
  "node.ts": ["*"],
  "serving.ts": ["*"],
};

/** Where `process`, `Deno`, node: modules, `globalThis` and `navigator.gpu` may appear. */
const RUNTIME_ALLOWED: readonly RegExp[] = [
  /^cli(\/|\.ts$)/,
  // Copies of the package share their registries.
  /^registry\.ts$/,
  /^log\//,
  /^http\/listen\.ts$/,
  /^serve\/checkpoint\/(age|archive|checkpoints|state_folder)\.ts$/,
  /^compute\/budget\/machine\.ts$/,
  /^compute\/webgpu\/(adapter|dawn|poll_sleep)\.ts$/,
  /^model\/files\/disk\.ts$/,
  /^node_module\.ts$/,
  /^run\/task\/modules\.ts$/,
  /^trace\/sqlite\/driver\.ts$/,
];

/** Where node: modules may appear besides, but not the process: no exit, no environment, no streams. */
const NODE_ALLOWED = /^run\//;

const RUNTIME_USES: readonly (readonly [RegExp, string])[] = [
  // Only members that the runtime's object has: `process` is also a stage of the loop.
  [
    /(?<![.\w])process\.(argv|cwd|env|exit|exitCode|hrtime|kill|memoryUsage|nextTick|off|on|once|pid|platform|std\w+|versions?)\b/,
    "process",
  ],
  [/(?<![.\w])Deno\b/, "Deno"],
  // Its type is not a use of the runtime.
  [/(?<![.\w])globalThis\b(?! extends Record<)/, "globalThis"],
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
    .filter((specifier) => /^\..*\.ts$/.test(specifier))
    .map((specifier) => normalize(join(dirname(path), specifier)).replaceAll("\\", "/"));
}

/** The targets of each node's imports, types included. */
type ImportGraph = ReadonlyMap<string, ReadonlySet<string>>;

function fileGraph(sources: Readonly<Record<string, string>>): ImportGraph {
  return new Map(Object.entries(sources).map(([path, text]) => [path, new Set(filesImportedBy(path, text))]));
}

/** The imports between folders; those within a folder do not count. */
function folderGraph(sources: Readonly<Record<string, string>>): ImportGraph {
  const graph = new Map<string, Set<string>>();
  for (const [path, targets] of fileGraph(sources)) {
    const folder = folderOf(path);
    const others = [...targets].map(folderOf).filter((target) => target !== folder);
    graph.set(folder, new Set([...(graph.get(folder) ?? []), ...others]));
  }
  return graph;
}

/** `loop/stages/batch.ts` is in `loop/stages/`; a file at the top of its room stands for itself. */
function folderOf(path: string): string {
  const [room, folder, file] = path.split("/");
  return file === undefined ? path : `${room}/${folder}/`;
}

/** Every set of nodes that reach each other, in the order of the graph. */
function findCircles(graph: ImportGraph): string[][] {
  const nodes = [...graph.keys()];
  const reached = new Map(nodes.map((node) => [node, reachableFrom(node, graph)]));
  const reaches = (from: string, to: string) => reached.get(from)!.has(to);
  const circleOf = (node: string) => nodes.filter((other) => reaches(node, other) && reaches(other, node));
  return nodes.map(circleOf).filter((circle, i) => circle[0] === nodes[i]);
}

/** The nodes that imports lead to from `node`: itself only through a circle. */
function reachableFrom(node: string, graph: ImportGraph): Set<string> {
  const found = new Set<string>();
  const waiting = [node];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    for (const target of graph.get(next) ?? []) {
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
  const modules = NODE_ALLOWED.test(path) ? [] : importsOf(text).filter((specifier) => specifier.startsWith("node:"));
  return [...uses, ...modules].map((name) => `${path}: may not touch the runtime: ${name}`);
}

function partOf(path: string): string {
  return path.split(/[\\/]/)[0]!;
}

/** Specifiers of static, re-exporting and dynamic imports, types included. */
function importsOf(text: string): string[] {
  const pattern = /(?:^|[;}\n])\s*(?:import|export)\b[^;"'`]*?["']([^"'\n]+)["']|\bimport\(\s*["']([^"'\n]+)["']/g;
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
    ["loop/train.ts", 'import type { Local } from "../backend/local.ts";', "loop may not import backend/local.ts"],
    ["loop/train.ts", 'import type { Backend } from "../contract/backend.ts";', undefined],
    ["loop/a.ts", 'import {\n  a,\n  b,\n} from "../backend/tinker.ts";', "loop may not import backend/tinker.ts"],
    ["serve/app.ts", 'export { run } from "../loop/run.ts";', "serve may not import loop/run.ts"],
    ["compute/device.ts", 'const d = await import("../data/pack.ts");', "compute may not import data/pack.ts"],
    ["compute/device.ts", 'import { ConfigError } from "../errors.ts";', undefined],
    ["data/order.ts", 'import { seedOf } from "../random.ts";', undefined],
    ["random.ts", 'import { Rows } from "./data/rows.ts";', "random.ts may not import data/rows.ts"],
    ["data/types.ts", 'import "../algorithm/kl.ts";', "data may not import algorithm/kl.ts"],
    ["algorithm/a.ts", 'import { x } from "../model/x.ts";', "algorithm may not import model/x.ts"],
    ["model/a.ts", '// import { x } from "../loop/x.ts";\nimport { y } from "./y.ts";', undefined],
    ["novelty/a.ts", "", "no rule for novelty"],
    ["data/a.ts", 'import { readFile } from "node:fs/promises";', "may not touch the runtime: node:fs/promises"],
    ["data/a.ts", "const x = process.env.HOME;", "may not touch the runtime: process"],
    ["data/a.ts", "const x = `$" + "{process.env.HOME}`;", "may not touch the runtime: process"],
    ["data/a.ts", "if (typeof Deno !== 'undefined') run();", "may not touch the runtime: Deno"],
    ["compute/webgpu/device.ts", "const gpu = navigator.gpu;", "may not touch the runtime: navigator"],
    ["compute/webgpu/device.ts", "const r = globalThis as unknown as R;", "may not touch the runtime: globalThis"],
    ["task/a.ts", "const t = globalThis as unknown as Record<symbol, T>;", "may not touch the runtime: globalThis"],
    ["registry.ts", "const t = globalThis as unknown as Record<symbol, T>;", undefined],
    ["data/a.ts", '/* process.env */ const x = "Deno.args"; // navigator.gpu', undefined],
    ["loop/a.ts", "const r = stages.process.name; const { process } = stages; process(r);", undefined],
    ["cli/process/io.ts", 'import { x } from "../backend/local.ts"; process.exit(Deno.pid);', undefined],
    ["run/place.ts", 'import { open } from "node:fs/promises";', undefined],
    ["run/place.ts", "process.exit(1);", "may not touch the runtime: process"],
    ["run/place.ts", 'import { Io } from "../cli/command.ts";', "run may not import cli/command.ts"],
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
    ["none where two import a third", { "a.ts": 'import "./c.ts";', "b.ts": 'import "./c.ts";', "c.ts": "" }, []],
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
    expect(findCircles(fileGraph(sources))).toEqual(circles);
  });

  test("among folders of a room, where no files form one", () => {
    const sources = {
      "loop/train.ts": 'import "./stages/a.ts";',
      "loop/contract.ts": "",
      "loop/stages/a.ts": 'import "./b.ts";\nimport "../contract.ts";',
      "loop/stages/b.ts": 'import "../rollout/a.ts";',
      "loop/rollout/a.ts": 'import "../contract.ts";',
    };
    expect(findCircles(folderGraph(sources))).toEqual([]);
    const upward = { ...sources, "loop/rollout/b.ts": 'import "../stages/a.ts";' };
    expect(findCircles(fileGraph(upward))).toEqual([]);
    expect(findCircles(folderGraph(upward))).toEqual([["loop/stages/", "loop/rollout/"]]);
    const toTheDoor = { ...sources, "loop/rollout/b.ts": 'import type { Run } from "../train.ts";' };
    expect(findCircles(folderGraph(toTheDoor))).toEqual([["loop/train.ts", "loop/stages/", "loop/rollout/"]]);
  });
});

/** Contracts can be read alone: their imports are types. */
const CONTRACTS = /^contract\/|^loop\/contract\.ts$/;

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
  expect(findCircles(fileGraph(SOURCES))).toEqual([]);
});

test("no folder imports one that leads back to it", () => {
  expect(findCircles(folderGraph(SOURCES))).toEqual([]);
});

test("contracts import nothing but types", () => {
  const contracts = Object.entries(SOURCES).filter(([path]) => CONTRACTS.test(path));
  expect(contracts.length).toBeGreaterThan(3);
  for (const [path, text] of contracts) expect(text, path).not.toMatch(/^(import (?!type )|export .* from)/m);
});
