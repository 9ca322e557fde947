/**
 * The support table is held to the code: a setting acts on `local` exactly when something reads it.
 * The loop and the CLI read settings by their whole path, in quotes: `setting(config, "rllm.rollout.n")`.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { ROWS } from "../../src/config/convert/rows.ts";
import { counterpartsOf } from "../../src/config/counterpart.ts";
import { LOCAL_FIELDS } from "../../src/config/fields_local.ts";
import { RLLM_FIELDS } from "../../src/config/fields_rllm.ts";
import { packagedFiles } from "../../src/config/packaged.ts";
import { BACKEND_FIELDS, BACKENDS } from "../../src/config/schema.ts";
import { SUPPORT, statusOf, supportOf, TARGETS } from "../../src/config/support.ts";
import { attempt } from "./disk.ts";

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
  const quoted = [...code.matchAll(/(?<!path: )"([a-z_]+(?:\.[\w]+)*)"/g)].map((match) => match[1]);
  const sections = [...code.matchAll(/`((?:[a-z_]+\.){2,})\$\{/g)].map((match) => match[1]);
  const inYaml = Object.values(packagedFiles()).flatMap((text) =>
    [...text.matchAll(/\$\{([\w.]+)\}/g)].map((match) => match[1]),
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
    expect(idle, "nothing reads these: make them act, or refuse them in src/config/support.ts").toEqual([]);
  });

  test("every setting that is read is not refused", () => {
    const refused = KNOWN.filter((path) => read.has(path) && statusOf(path, "local") === "refused");
    expect(refused, "these are read: let them act in src/config/support.ts").toEqual([]);
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
        expect([pattern, ["acts", "forwarded", "logging", "refused", "-"].includes(status[target])]).toEqual([
          pattern,
          true,
        ]);
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
        expect(told).toContain(`Cannot set ${other} on the ${backend} backend as ${supportOf(path).reason}`);
        const allowed = attempt([`rllm/backend=${backend}`, other], { allowUnsupported: true });
        expect(allowed.warnings.map(({ message }) => message).join("\n")).toContain(
          `${supportOf(path).reason}; it has no effect`,
        );
        expect(attempt([`rllm/backend=${backend}`, `${path}=${field.default}`]).problems).toEqual([]);
      }
    }
  });
});
