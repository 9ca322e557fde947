/** The manifests agree: package.json, its lock file and deno.json. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { importModules } from "../src/train/run/task/modules.ts";

const root = new URL("../", import.meta.url);
const read = (name: string) => JSON.parse(readFileSync(new URL(name, root), "utf8"));
const manifest = read("package.json");
const deno = read("deno.json");

const DOORS = Object.entries(manifest.exports as Record<string, { default: string; types: string }>).filter(
  ([door]) => door !== "./package.json",
);
const isOwn = (name: string) => /^grpu(\/|$)/.test(name);

interface Locked {
  version?: string;
  resolved?: string;
  dependencies?: Record<string, string>;
  optionalDependencies?: Record<string, string>;
}
const locked: Record<string, Locked> = read("package-lock.json").packages;

describe("package-lock.json", () => {
  test("names no server", () => {
    expect(Object.values(locked).filter((it) => it.resolved !== undefined)).toEqual([]);
  });

  test("holds every platform's packages, without which `npm ci` refuses it", () => {
    const names = new Set(Object.keys(locked).map((path) => path.replace(/^.*node_modules\//, "")));
    const missing = Object.entries(locked).flatMap(([path, it]) =>
      Object.keys({ ...it.dependencies, ...it.optionalDependencies })
        .filter((name) => !names.has(name))
        .map((name) => `${path} needs ${name}`),
    );
    expect(missing).toEqual([]);
  });

  test("is of this package.json", () => {
    const { "": own } = locked as Record<string, Locked & { devDependencies?: Record<string, string> }>;
    expect(own!.optionalDependencies).toEqual(manifest.optionalDependencies);
    expect(own!.version).toBe(manifest.version);
    expect(own!.dependencies).toEqual(manifest.dependencies);
    expect(own!.devDependencies).toEqual(manifest.devDependencies);
  });
});

describe("deno.json", () => {
  test("asks for the versions of package.json", () => {
    const packages = Object.entries(deno.imports as Record<string, string>).filter(([name]) => !isOwn(name));
    const wanted = Object.entries(manifest.dependencies).map(([name, range]) => [name, `npm:${name}@${range}`]);
    expect(Object.fromEntries(packages)).toEqual(Object.fromEntries(wanted));
    expect(deno.version).toBe(manifest.version);
  });

  test("has the doors of package.json, for others and for itself", () => {
    const own = Object.entries(deno.imports).filter(([name]) => isOwn(name));
    expect(own.map(([name, path]) => [name.replace("grpu", "."), path])).toEqual(Object.entries(deno.exports));
    const doors = Object.entries(deno.exports as Record<string, string>).map(([door, path]) => [
      door,
      path.replace("./src/", "./dist/").replace(".ts", ".js"),
    ]);
    expect(Object.fromEntries(DOORS.map(([door, { default: file }]) => [door, file]))).toEqual(
      Object.fromEntries(doors),
    );
  });
});

test("what package.json offers has a source", () => {
  const offered = [manifest.bin.grpu, ...DOORS.flatMap(([, { default: file, types }]) => [file, types])];
  for (const path of offered) {
    const source = path.replace(/^(\.\/)?dist\//, "src/").replace(/\.js$|\.d\.ts$/, ".ts");
    expect(existsSync(new URL(source, root)), `${path} from ${source}`).toBe(true);
  }
});

test("a module given by --import has every door", async () => {
  const dir = mkdtempSync(join(tmpdir(), "grpu-doors-"));
  try {
    const names = DOORS.map(([door]) => door.replace(".", "grpu"));
    const file = join(dir, "doors.ts");
    const imports = names.map((name, i) => `import * as door${i} from "${name}";`).join("\n");
    const all = names.map((_, i) => `Object.keys(door${i}).length`).join(", ");
    writeFileSync(file, `${imports}\nif ([${all}].some((count) => count < 3)) throw new Error("an empty door");\n`);
    await importModules([file]);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
