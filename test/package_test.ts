/** The manifests agree: package.json, its lock file and deno.json. */
import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";

const root = new URL("../", import.meta.url);
const read = (name: string) => JSON.parse(readFileSync(new URL(name, root), "utf8"));
const manifest = read("package.json");
const deno = read("deno.json");

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
    expect(own!.version).toBe(manifest.version);
    expect(own!.dependencies).toEqual(manifest.dependencies);
    expect(own!.devDependencies).toEqual(manifest.devDependencies);
  });
});

describe("deno.json", () => {
  test("asks for the versions of package.json", () => {
    const { grpu: _, ...imports } = deno.imports as Record<string, string>;
    const wanted = Object.entries(manifest.dependencies).map(([name, range]) => [
      name,
      `npm:${name}@${range}`,
    ]);
    expect(imports).toEqual(Object.fromEntries(wanted));
    expect(deno.version).toBe(manifest.version);
  });
});

test("what package.json offers has a source", () => {
  const offered = [manifest.bin.grpu, manifest.exports["."].default, manifest.exports["."].types];
  for (const path of offered) {
    const source = path.replace(/^(\.\/)?dist\//, "src/").replace(/\.js$|\.d\.ts$/, ".ts");
    expect(existsSync(new URL(source, root)), `${path} from ${source}`).toBe(true);
  }
  expect(existsSync(new URL(deno.exports, root))).toBe(true);
});
