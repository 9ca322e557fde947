/**
 * The support table is held to the code: a setting acts on `local` exactly when something reads it.
 * The CLI reads settings by their whole path, in quotes: `setting(config, "rllm.agent.name")`. The loop takes those with the
 * column `loop` out of `LoopSettings`, by their last name.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import type { ConvertedSource } from "../../../src/cluster/convert/contract.ts";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { counterpartsOf } from "../../../src/cluster/convert/inspect/counterpart.ts";
import { ROWS } from "../../../src/cluster/convert/trinity/rows.ts";
import { overrideText } from "../../../src/cluster/convert/write.ts";
import { BACKEND_FIELDS, BACKENDS } from "../../../src/train/config/fields/backend_fields.ts";
import { type Field, TARGETS } from "../../../src/train/config/fields/field.ts";
import { LOCAL_FIELDS } from "../../../src/train/config/fields/local.ts";
import { LOOP_ROWS } from "../../../src/train/config/fields/loop.ts";
import { packagedFiles } from "../../../src/train/config/fields/packaged.ts";
import { RLLM_FIELDS } from "../../../src/train/config/fields/rllm.ts";
import { reasonOn, statusOf, supportTable } from "../../../src/train/config/fields/support.ts";
import { leaves, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { attempt, readConfig } from "./disk.ts";

const SOURCE = fileURLToPath(new URL("../../../src/", import.meta.url));
const KNOWN = Object.keys({ ...RLLM_FIELDS, ...LOCAL_FIELDS }).filter((path) => !path.endsWith(".*"));

const KNOWN_OR_NATIVE = [...KNOWN, ...BACKENDS.flatMap((name) => Object.keys(BACKEND_FIELDS[name]))];
const fits = (pattern: string, path: string) =>
  pattern === path || (pattern.endsWith(".*") && path.startsWith(pattern.slice(0, -1)));

function codeOf(isWanted: (file: string) => boolean): string {
  const files = readdirSync(SOURCE, { recursive: true, encoding: "utf8" }).map((file) => file.replaceAll("\\", "/"));
  return files
    .filter((file) => file.endsWith(".ts") && isWanted(file))
    .map((file) => readFileSync(join(SOURCE, file), "utf8"))
    .join("\n");
}

/** Paths in quotes, except those that are only named to be refused (`{ path: "...", off: ... }`). */
function readPaths(): Set<string> {
  // What refuses a setting on verl names it too.
  const code = codeOf((file) => !/^(train\/config\/|cli\/commands\/config|cluster\/verl\/)/.test(file));
  const quoted = [...code.matchAll(/(?<!path: )"([a-z_]+(?:\.[\w]+)*)"/g)].map((match) => match[1]!);
  const sections = [...code.matchAll(/`((?:[a-z_]+\.){2,})\$\{/g)].map((match) => match[1]!);
  const inYaml = Object.values(packagedFiles()).flatMap((text) =>
    [...text.matchAll(/\$\{([\w.]+)\}/g)].map((match) => match[1]!),
  );
  const read = new Set([...quoted, ...inYaml, ...takenByLoop()]);
  for (const path of KNOWN) if (sections.some((section) => path.startsWith(section))) read.add(path);
  return read;
}

/** Rows with `loop` whose name the loop's code takes out of its settings: `.gamma`, `{ gamma }` or `mask_${reason}`. */
function takenByLoop(): string[] {
  const code = codeOf(
    (file) => /^(train\/loop|train\/run|cli)\//.test(file) && !/^train\/loop\/settings(_config)?\.ts$/.test(file),
  );
  const prefixes = [...code.matchAll(/`([a-z]+_)\$\{/g)].map((match) => match[1]!);
  const isTaken = (name: string) =>
    new RegExp(`(\\.|[{,]\\s*)${name}\\b`).test(code) || prefixes.some((prefix) => name.startsWith(prefix));
  return LOOP_ROWS.filter(({ at }) => isTaken(at.slice(at.lastIndexOf(".") + 1))).map(({ path }) => path);
}

describe("support on the local backend", () => {
  const read = readPaths();

  test("every setting that acts is read somewhere", () => {
    const idle = KNOWN.filter(
      (path) => statusOf(path, "local") === "acts" && !read.has(path) && path !== "rllm.backend",
    );
    expect(idle, "nothing reads these: make them act, or refuse them with the column `on` of their rows").toEqual([]);
  });

  test("every setting that is read is not refused", () => {
    const refused = KNOWN.filter((path) => read.has(path) && statusOf(path, "local") === "refused");
    expect(refused, "these are read: let them act with the column `on` of their rows").toEqual([]);
  });
});

describe("support table", () => {
  test("every setting of ours is a setting of some target, and so is its line", () => {
    const tables = [RLLM_FIELDS, ...BACKENDS.map((name) => BACKEND_FIELDS[name])];
    for (const path of new Set(tables.flatMap((table) => Object.keys(table)))) {
      expect([path, TARGETS.some((target) => statusOf(path, target) !== "-")]).toEqual([path, true]);
    }
    for (const { pattern, on } of supportTable()) {
      const isOpen = pattern === "*" || Object.hasOwn(RLLM_FIELDS, pattern);
      const example = isOpen ? pattern.replace("*", "x") : KNOWN_OR_NATIVE.find((path) => fits(pattern, path));
      expect(example, pattern).toBeDefined();
      for (const target of TARGETS) expect(on[target].status).toBe(statusOf(example!, target));
    }
  });

  test("every status is a word of the legend, every reason is given", () => {
    for (const { pattern, on } of supportTable()) {
      for (const target of TARGETS) {
        const { status, reason } = on[target];
        const isWord = ["acts", "forwarded", "logging", "refused", "dropped", "-"].includes(status);
        expect([pattern, isWord]).toEqual([pattern, true]);
        expect(reason.length, pattern).toBeGreaterThan(5);
      }
    }
  });

  test("a setting that is forwarded to verl or Trinity has a name there", () => {
    const forwarded = Object.keys(RLLM_FIELDS).filter(
      (path) => !path.endsWith(".*") && statusOf(path, "verl") === "forwarded",
    );
    const unnamed = forwarded.filter(
      (path) => counterpartsOf(path).verl === undefined && !path.startsWith("rllm.async_training."),
    );
    expect(unnamed).toEqual([]);
    const toTrinity = Object.keys(RLLM_FIELDS).filter(
      (path) => !path.endsWith(".*") && statusOf(path, "trinity") === "forwarded",
    );
    expect(toTrinity.filter((path) => counterpartsOf(path).trinity === undefined)).toEqual([]);
    expect(ROWS.length).toBeGreaterThan(50);
  });

  test("a refused setting is an error with its reason, a warning when allowed, and silent at its default", () => {
    for (const backend of BACKENDS) {
      const refused = Object.entries(RLLM_FIELDS).filter(
        ([path, field]) =>
          statusOf(path, backend) === "refused" && field.type === "bool" && typeof field.default === "boolean",
      );
      expect(refused.length).toBeGreaterThan(0);
      for (const [path, field] of refused.slice(0, 6)) {
        const other = `${path}=${!field.default}`;
        const told = attempt([`rllm/backend=${backend}`, other])
          .problems.map(({ message }) => message)
          .join("\n");
        expect(told).toContain(`Cannot set ${other} on the ${backend} backend: ${reasonOn(path, backend)}`);
        const allowed = attempt([`rllm/backend=${backend}`, other], { allowUnsupported: true });
        expect(allowed.warnings.map(({ message }) => message).join("\n")).toContain(
          `${reasonOn(path, backend)}. It has no effect`,
        );
        expect(attempt([`rllm/backend=${backend}`, `${path}=${field.default}`]).problems).toEqual([]);
      }
    }
  });
});

test.each(["local", "tinker", "verl", "trinity"] as const)("a stop string is refused on %s", (backend) => {
  for (const path of ["rllm.rollout.train.stop", "rllm.rollout.val.stop"]) {
    const told = attempt([`rllm/backend=${backend}`, `+${path}=x`]).problems.map(({ message }) => message);
    expect(told.join()).toContain(`Cannot set ${path}=x on the ${backend} backend: rollouts take temperature`);
    expect(statusOf(path, backend)).toBe("refused");
  }
});

/** Values that the other systems have too, where the plain choice below is not one. */
const SHARED_VALUES: Readonly<Record<string, YamlValue>> = {
  "rllm.algorithm.adv_estimator": "rloo",
  "rllm.algorithm.loss_fn": "gspo",
  "rllm.algorithm.lr_schedule": "cosine",
  "rllm.algorithm.loss_agg_mode": "seq-mean-token-sum",
  "rllm.algorithm.router_replay": "R3",
  "rllm.trainer.logger": ["wandb"],
  "rllm.trainer.total_batches": 7,
};

function otherValue(path: string, field: Field): YamlValue {
  if (path in SHARED_VALUES) return SHARED_VALUES[path]!;
  const choice = field.choices?.find((name) => name !== field.default);
  if (choice !== undefined) return field.type === "list" ? [choice] : choice;
  if (field.type === "bool") return !field.default;
  if (field.type === "int" || field.type === "number") return typeof field.default === "number" ? field.default + 1 : 2;
  if (field.type === "float") return field.default === 0.5 ? 0.25 : 0.5;
  return field.type === "list" ? ["x"] : field.type === "dict" ? { a: 1 } : "x";
}

describe("every row is true of the code", () => {
  const settings = Object.entries<Field>(RLLM_FIELDS)
    .filter(([path]) => !path.endsWith(".*"))
    .map(([path, field]) => ({ path, field, override: `${path}=${overrideText(otherValue(path, field))}` }));

  test.each(["local", "tinker", "verl", "trinity"] as const)("on %s, refused exactly where it says so", (backend) => {
    const untrue = settings.filter(({ path, override }) => {
      const told = attempt([`rllm/backend=${backend}`, override]).problems.map(({ message }) => message);
      const isRefused = told.some((message) =>
        message.includes(`on the ${backend} backend: ${reasonOn(path, backend)}`),
      );
      return isRefused !== (statusOf(path, backend) === "refused");
    });
    expect(untrue.map(({ override }) => override)).toEqual([]);
  });

  test("a setting that is forwarded to verl changes verl's own tree", () => {
    const native = (...overrides: string[]) => {
      const flat = [...leaves(attempt(["rllm/backend=verl", ...overrides]).config)];
      return JSON.stringify(flat.filter(([path]) => !path.startsWith("rllm.")));
    };
    const plain = native();
    const idle = settings.filter(
      ({ path, override }) =>
        statusOf(path, "verl") === "forwarded" &&
        !path.startsWith("rllm.async_training.") &&
        native(override) === plain,
    );
    expect(idle.map(({ override }) => override)).toEqual([]);
  });

  test("conversion to Trinity keeps forwarded settings, and drops and reports dropped ones", () => {
    const files: [string, YamlValue][] = [
      ["data.train_files", "/d/train.parquet"],
      ["data.val_files", "/d/test.parquet"],
      ["rllm.trainer.test_freq", 5],
    ];
    const outcome = (path: string, value: YamlValue) => {
      const values = new Map([...files, [path, value] as const].map(([at, it]) => [at, { value: it, file: "x" }]));
      const source: ConvertedSource = { system: "rllm", values, problems: [] };
      const { notes } = convert(source, { to: "trinity", target: "new", readConfig });
      const about = notes.filter(({ from }) => from?.split(" + ").includes(path));
      if (about.some(({ kind, to }) => kind !== "dropped" && to !== undefined)) return "carried";
      return about.some(({ kind }) => kind === "dropped") ? "left out" : "lost";
    };
    const expected = { forwarded: "carried", logging: "carried" } as Partial<Record<string, string>>;
    const untrue = settings.flatMap(({ path, field }) => {
      const status = statusOf(path, "trinity");
      const found = status === "-" ? "left out" : outcome(path, otherValue(path, field));
      return found === (expected[status] ?? "left out") ? [] : [`${path}: ${status}, ${found}`];
    });
    expect(untrue).toEqual([]);
  });

  test("no backend's line speaks of another one", () => {
    const names: Readonly<Record<string, RegExp>> = {
      local: /Tinker|verl|Trinity/,
      tinker: /verl|Trinity/,
      verl: /Tinker|Trinity/,
      trinity: /Tinker|verl/,
    };
    const foreign = supportTable().flatMap(({ pattern, on }) =>
      TARGETS.filter((target) => on[target].status !== "-" && pattern !== "*")
        .filter((target) => names[target]!.test(on[target].reason))
        .map((target) => `${pattern} on ${target}`),
    );
    expect(foreign).toEqual([]);
  });

  test("a clip range has both its names in verl, and the steps of a run both in Trinity", () => {
    expect(counterpartsOf("rllm.algorithm.eps_clip").verl).toBe(
      "actor_rollout_ref.actor.clip_ratio_low, actor_rollout_ref.actor.clip_ratio",
    );
    expect(counterpartsOf("actor_rollout_ref.actor.clip_ratio").rllm).toBe("rllm.algorithm.eps_clip");
    for (const path of ["rllm.trainer.total_batches", "trainer.total_training_steps"]) {
      expect(counterpartsOf(path).trinity).toBe("buffer.total_steps, trainer.total_steps");
    }
    expect(counterpartsOf("buffer.total_steps").rllm).toBe("rllm.trainer.total_batches");
    expect(reasonOn("rllm.trainer.total_batches", "trinity")).toContain("sync_interval of them for one here");
  });
});
