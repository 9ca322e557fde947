/**
 * Enforces the table of who may import whom, where the runtime (Node, Deno, a page) may be used, and that neither files
 * nor folders import each other in a circle.
 */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

/** Rooms whose folders are parts of their own: `train/loop` is one, and `chat` is one with all its folders. */
const DIVIDED = /^(cluster|engine|leaves|serve|train)\//;

/** What every part may import. Its files import each other alone. */
const LEAVES = "leaves";

/** What each part of src/ may import besides itself and the {@link LEAVES}; `*` is everything below it in this list. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  leaves: [],
  "leaves/http": [],
  "engine/contract": [],
  "engine/compute": [],
  "engine/packing": [],
  "engine/model": ["engine/compute", "engine/contract"],
  "engine/algorithm": ["engine/compute", "engine/contract", "engine/packing"],
  chat: ["engine/contract"],
  "train/data": ["chat", "engine/contract", "engine/packing"],
  "train/config": ["chat", "engine/algorithm", "train/data"],
  "train/log": ["leaves/http", "train/data"],
  "train/task": ["chat", "engine/contract", "train/data"],
  "train/trace": ["chat", "engine/contract", "train/data"],
  "train/backend": [
    ...["engine/algorithm", "engine/compute", "engine/contract", "engine/model", "engine/packing"],
    ...["train/config", "train/data"],
  ],
  "train/loop": [
    ...["chat", "engine/algorithm", "engine/compute", "engine/contract", "engine/packing"],
    ...["train/config", "train/data", "train/log", "train/task", "train/trace"],
  ],
  "train/evaluation": ["engine/contract", "leaves/http", "train/data", "train/loop"],
  "serve/gateway": ["chat", "engine/contract", "leaves/http", "train/data", "train/trace"],
  "serve/tinker": [
    ...["chat", "engine/compute", "engine/contract", "engine/model"],
    ...["leaves/http", "train/config", "train/data", "train/log"],
  ],
  "serve/openai": ["chat", "engine/contract", "leaves/http", "serve/tinker", "train/data"],
  "cluster/convert": ["engine/algorithm", "train/config"],
  "cluster/rewards": ["chat", "engine/contract", "leaves/http", "train/data", "train/loop", "train/task"],
  "cluster/ray": ["cluster/convert", "engine/contract", "train/backend", "train/config", "train/data"],
  "cluster/verl": [
    ...["cluster/convert", "cluster/ray", "engine/algorithm", "engine/contract"],
    ...["train/backend", "train/config", "train/data"],
  ],
  "cluster/trinity": [
    "cluster/convert",
    "cluster/ray",
    "cluster/verl",
    "engine/contract",
    "train/config",
    "train/data",
  ],
  "mod.ts": ["*"],
  "node.ts": ["*"],
  "train/run": ["*"],
  "serving.ts": ["*"],
  cli: ["*"],
  "cli.ts": ["*"],
};

/** Where `process`, `Deno`, node: modules, `globalThis` and `navigator.gpu` may appear. */
const RUNTIME_ALLOWED: readonly RegExp[] = [
  /^cli(\/|\.ts$)/,
  // Copies of the package share their registries.
  /^leaves\/registry\.ts$/,
  /^train\/log\//,
  /^leaves\/http\/listen\.ts$/,
  /^serve\/tinker\/checkpoint\/(age|archive|checkpoints|state_folder)\.ts$/,
  /^engine\/compute\/budget\/machine\.ts$/,
  /^engine\/compute\/webgpu\/(adapter|dawn|poll_sleep)\.ts$/,
  /^engine\/model\/files\/disk\.ts$/,
  /^leaves\/node_module\.ts$/,
  /^train\/run\/task\/modules\.ts$/,
  /^train\/trace\/sqlite\/driver\.ts$/,
];

/** Where node: modules may appear besides, but not the process: no exit, no environment, no streams. */
const NODE_ALLOWED = /^train\/run\//;

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
      return to !== from && to !== LEAVES && !mayImport(allowed, { from, to });
    })
    .map((target) => `${path}: ${from} may not import ${target}`);
}

const PARTS = Object.keys(MAY_IMPORT);

function mayImport(allowed: readonly string[], { from, to }: { from: string; to: string }): boolean {
  return allowed.includes(to) || (allowed.includes("*") && PARTS.indexOf(to) < PARTS.indexOf(from));
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
  const part = partOf(path);
  const [folder, file] = path.slice(part.length + 1).split("/");
  return file === undefined ? path : `${part}/${folder}/`;
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
  const [room, folder, file] = path.split(/[\\/]/);
  return DIVIDED.test(path) && file !== undefined ? `${room}/${folder}` : room!;
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
    [
      "train/loop/a.ts",
      'import type { L } from "../backend/local.ts";',
      "train/loop may not import train/backend/local.ts",
    ],
    ["train/loop/train.ts", 'import type { Backend } from "../../engine/contract/backend.ts";', undefined],
    [
      "train/loop/a.ts",
      'import {\n  a,\n  b,\n} from "../backend/x.ts";',
      "train/loop may not import train/backend/x.ts",
    ],
    [
      "serve/tinker/a.ts",
      'export { run } from "../../train/loop/run.ts";',
      "serve/tinker may not import train/loop/run.ts",
    ],
    ["engine/compute/a.ts", 'const d = await import("../../chat/a.ts");', "engine/compute may not import chat/a.ts"],
    ["engine/compute/device.ts", 'import { ConfigError } from "../../leaves/errors.ts";', undefined],
    ["train/data/order.ts", 'import { seedOf } from "../../leaves/random.ts";', undefined],
    ["leaves/random.ts", 'import { R } from "../train/data/rows.ts";', "leaves may not import train/data/rows.ts"],
    ["leaves/json.ts", 'import "./http/guard.ts";', "leaves may not import leaves/http/guard.ts"],
    [
      "train/data/types.ts",
      'import "../../engine/algorithm/kl.ts";',
      "train/data may not import engine/algorithm/kl.ts",
    ],
    [
      "engine/algorithm/a.ts",
      'import { x } from "../model/x.ts";',
      "engine/algorithm may not import engine/model/x.ts",
    ],
    ["engine/model/a.ts", '// import { x } from "../../train/loop/x.ts";\nimport { y } from "./y.ts";', undefined],
    ["mod.ts", 'import "./cli/front.ts";', "mod.ts may not import cli/front.ts"],
    ["train/run/place.ts", 'import { open } from "node:fs/promises";', undefined],
    ["train/run/place.ts", "process.exit(1);", "may not touch the runtime: process"],
    ["train/run/place.ts", 'import { Io } from "../../cli/command.ts";', "train/run may not import cli/command.ts"],
    ["novelty/a.ts", "", "no rule for novelty"],
    ["train/novelty/a.ts", "", "no rule for train/novelty"],
    ["train/data/a.ts", 'import { readFile } from "node:fs/promises";', "may not touch the runtime: node:fs/promises"],
    ["train/data/a.ts", "const x = process.env.HOME;", "may not touch the runtime: process"],
    ["train/data/a.ts", "const x = `$" + "{process.env.HOME}`;", "may not touch the runtime: process"],
    ["train/data/a.ts", "if (typeof Deno !== 'undefined') run();", "may not touch the runtime: Deno"],
    ["engine/compute/webgpu/device.ts", "const gpu = navigator.gpu;", "may not touch the runtime: navigator"],
    [
      "engine/compute/webgpu/device.ts",
      "const r = globalThis as unknown as R;",
      "may not touch the runtime: globalThis",
    ],
    [
      "train/task/a.ts",
      "const t = globalThis as unknown as Record<symbol, T>;",
      "may not touch the runtime: globalThis",
    ],
    ["leaves/registry.ts", "const t = globalThis as unknown as Record<symbol, T>;", undefined],
    ["train/data/a.ts", '/* process.env */ const x = "Deno.args"; // navigator.gpu', undefined],
    ["train/loop/a.ts", "const r = stages.process.name; const { process } = stages; process(r);", undefined],
    ["cli/process/io.ts", 'import { x } from "../../train/backend/local.ts"; process.exit(Deno.pid);', undefined],
    ["engine/model/files/disk.ts", 'import { open } from "node:fs/promises";', undefined],
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
      "train/loop/train.ts": 'import "./stages/a.ts";',
      "train/loop/contract.ts": "",
      "train/loop/stages/a.ts": 'import "./b.ts";\nimport "../contract.ts";',
      "train/loop/stages/b.ts": 'import "../rollout/a.ts";',
      "train/loop/rollout/a.ts": 'import "../contract.ts";',
    };
    expect(findCircles(folderGraph(sources))).toEqual([]);
    const upward = { ...sources, "train/loop/rollout/b.ts": 'import "../stages/a.ts";' };
    expect(findCircles(fileGraph(upward))).toEqual([]);
    expect(findCircles(folderGraph(upward))).toEqual([["train/loop/stages/", "train/loop/rollout/"]]);
    const toTheDoor = { ...sources, "train/loop/rollout/b.ts": 'import type { Run } from "../train.ts";' };
    expect(findCircles(folderGraph(toTheDoor))).toEqual([
      ["train/loop/train.ts", "train/loop/stages/", "train/loop/rollout/"],
    ]);
  });
});

/** Contracts can be read alone: their imports are types. */
const CONTRACTS = /^engine\/contract\/|^train\/loop\/contract\.ts$/;

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

test("no part imports one that leads back to it", () => {
  const parts = new Map<string, Set<string>>();
  for (const [path, targets] of fileGraph(SOURCES)) {
    const others = [...targets].map(partOf).filter((part) => part !== partOf(path));
    parts.set(partOf(path), new Set([...(parts.get(partOf(path)) ?? []), ...others]));
  }
  expect(findCircles(parts)).toEqual([]);
});

test("no folder imports one that leads back to it", () => {
  expect(findCircles(folderGraph(SOURCES))).toEqual([]);
});

test("contracts import nothing but types", () => {
  const contracts = Object.entries(SOURCES).filter(([path]) => CONTRACTS.test(path));
  expect(contracts.length).toBeGreaterThan(3);
  for (const [path, text] of contracts) expect(text, path).not.toMatch(/^(import (?!type )|export .* from)/m);
});
