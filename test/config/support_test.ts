/**
 * The support table is held to the code: a setting acts on `local` exactly when something reads it.
 * The loop and the CLI read settings by their whole path, in quotes: `setting(config, "rllm.rollout.n")`.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import type { Field } from "../../src/config/fields/field.ts";
import { LOCAL_FIELDS } from "../../src/config/fields/local.ts";
import { packagedFiles } from "../../src/config/fields/packaged.ts";
import { RLLM_FIELDS } from "../../src/config/fields/rllm.ts";
import { reasonOn, SUPPORT, statusOf, supportOf, TARGETS } from "../../src/config/fields/support.ts";
import { BACKEND_FIELDS, BACKENDS } from "../../src/config/schema.ts";
import { leaves, type Value } from "../../src/config/yaml/tree.ts";
import { convert } from "../../src/convert/convert.ts";
import { counterpartsOf } from "../../src/convert/counterpart.ts";
import { ROWS } from "../../src/convert/rows.ts";
import type { Source } from "../../src/convert/source.ts";
import { overrideText } from "../../src/convert/write.ts";
import { attempt, readConfig } from "./disk.ts";

const SOURCE = fileURLToPath(new URL("../../src/", import.meta.url));
const KNOWN = Object.keys({ ...RLLM_FIELDS, ...LOCAL_FIELDS }).filter((path) => !path.endsWith(".*"));

function codeThatReads(): string {
  const files = readdirSync(SOURCE, { recursive: true, encoding: "utf8" }).filter(
    (file) => file.endsWith(".ts") && !file.startsWith("config/") && file !== join("cli", "config.ts"),
  );
  return files.map((file) => readFileSync(join(SOURCE, file), "utf8")).join("\n");
}

/** Paths in quotes, except those that are only named to be refused (`{ path: "...", off: ... }`). */
function readPaths(): Set<string> {
  const code = codeThatReads();
  const quoted = [...code.matchAll(/(?<!path: )"([a-z_]+(?:\.[\w]+)*)"/g)].map((match) => match[1]!);
  const sections = [...code.matchAll(/`((?:[a-z_]+\.){2,})\$\{/g)].map((match) => match[1]!);
  const inYaml = Object.values(packagedFiles()).flatMap((text) =>
    [...text.matchAll(/\$\{([\w.]+)\}/g)].map((match) => match[1]!),
  );
  const read = new Set([...quoted, ...inYaml]);
  for (const path of KNOWN) if (sections.some((section) => path.startsWith(section))) read.add(path);
  return read;
}

describe("support on the local backend", () => {
  const read = readPaths();

  test("every setting that acts is read somewhere", () => {
    const idle = KNOWN.filter(
      (path) => statusOf(path, "local") === "acts" && !read.has(path) && path !== "rllm.backend",
    );
    expect(
      idle,
      "nothing reads these: make them act, or refuse them in src/config/fields/support.ts",
    ).toEqual([]);
  });

  test("every setting that is read is not refused", () => {
    const refused = KNOWN.filter((path) => read.has(path) && statusOf(path, "local") === "refused");
    expect(refused, "these are read: let them act in src/config/fields/support.ts").toEqual([]);
  });
});

describe("support table", () => {
  test("has a row for every setting of ours, and every row is about some setting", () => {
    const all = [
      ...new Set(
        [RLLM_FIELDS, ...BACKENDS.map((name) => BACKEND_FIELDS[name])].flatMap((table) => Object.keys(table)),
      ),
    ];
    const bare = all.filter((path) => supportOf(path).pattern === "*" && !(path in BACKEND_FIELDS.verl));
    expect(bare).toEqual([]);
    const used = new Set(all.map((path) => supportOf(path).pattern));
    expect(
      SUPPORT.map(({ pattern }) => pattern).filter((pattern) => pattern !== "*" && !used.has(pattern)),
    ).toEqual([]);
  });

  test("every status is a word of the legend, every reason is given", () => {
    for (const { pattern, status, reason } of SUPPORT) {
      for (const target of TARGETS)
        expect([
          pattern,
          ["acts", "forwarded", "logging", "refused", "dropped", "-"].includes(status[target]),
        ]).toEqual([pattern, true]);
      expect(reason.length, pattern).toBeGreaterThan(5);
    }
  });

  test("what is forwarded to verl or Trinity has a name there", () => {
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
          statusOf(path, backend) === "refused" &&
          field.type === "bool" &&
          typeof field.default === "boolean",
      );
      expect(refused.length).toBeGreaterThan(0);
      for (const [path, field] of refused.slice(0, 6)) {
        const other = `${path}=${!field.default}`;
        const told = attempt([`rllm/backend=${backend}`, other])
          .problems.map(({ message }) => message)
          .join("\n");
        expect(told).toContain(`Cannot set ${other} on the ${backend} backend as ${reasonOn(path, backend)}`);
        const allowed = attempt([`rllm/backend=${backend}`, other], { allowUnsupported: true });
        expect(allowed.warnings.map(({ message }) => message).join("\n")).toContain(
          `${reasonOn(path, backend)}; it has no effect`,
        );
        expect(attempt([`rllm/backend=${backend}`, `${path}=${field.default}`]).problems).toEqual([]);
      }
    }
  });
});

/** Values that the other systems have too, where the plain choice below is not one. */
const SHARED_VALUES: Readonly<Record<string, Value>> = {
  "rllm.algorithm.adv_estimator": "rloo",
  "rllm.algorithm.loss_fn": "gspo",
  "rllm.algorithm.lr_schedule": "cosine",
  "rllm.algorithm.loss_agg_mode": "seq-mean-token-sum",
  "rllm.algorithm.router_replay": "R3",
  "rllm.trainer.logger": ["wandb"],
  "rllm.trainer.total_batches": 7,
};

function otherValue(path: string, field: Field): Value {
  if (path in SHARED_VALUES) return SHARED_VALUES[path]!;
  const choice = field.choices?.find((name) => name !== field.default);
  if (choice !== undefined) return field.type === "list" ? [choice] : choice;
  if (field.type === "bool") return !field.default;
  if (field.type === "int" || field.type === "number")
    return typeof field.default === "number" ? field.default + 1 : 2;
  if (field.type === "float") return field.default === 0.5 ? 0.25 : 0.5;
  return field.type === "list" ? ["x"] : field.type === "dict" ? { a: 1 } : "x";
}

describe("every row is true of the code", () => {
  const settings = Object.entries<Field>(RLLM_FIELDS)
    .filter(([path]) => !path.endsWith(".*"))
    .map(([path, field]) => ({ path, field, override: `${path}=${overrideText(otherValue(path, field))}` }));

  test.each(["local", "tinker", "verl"] as const)("on %s, refused exactly where it says so", (backend) => {
    const untrue = settings.filter(({ path, override }) => {
      const told = attempt([`rllm/backend=${backend}`, override]).problems.map(({ message }) => message);
      const isRefused = told.some((message) =>
        message.includes(`on the ${backend} backend as ${reasonOn(path, backend)}`),
      );
      return isRefused !== (statusOf(path, backend) === "refused");
    });
    expect(untrue.map(({ override }) => override)).toEqual([]);
  });

  test("what is forwarded to verl changes verl's own tree", () => {
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

  test("conversion to Trinity carries what is forwarded, and leaves out and tells what is dropped", () => {
    const files: [string, Value][] = [
      ["data.train_files", "/d/train.parquet"],
      ["data.val_files", "/d/test.parquet"],
      ["rllm.trainer.test_freq", 5],
    ];
    const outcome = (path: string, value: Value) => {
      const values = new Map(
        [...files, [path, value] as const].map(([at, it]) => [at, { value: it, file: "x" }]),
      );
      const source: Source = { system: "rllm", values, problems: [] };
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
    const foreign = SUPPORT.flatMap(({ pattern, status }) =>
      TARGETS.filter((target) => status[target] !== "-" && pattern !== "*")
        .filter((target) => names[target]!.test(reasonOn(pattern.replace(/\.\*$/, ".x"), target)))
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
