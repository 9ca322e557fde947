/** Node's modules by name: themselves where there is Node, a refusal at the first call where there is none. */
import { existsSync } from "node:fs";
import { afterEach, describe, expect, test, vi } from "vitest";
import { UnsupportedError } from "../../src/leaves/errors.ts";
import { nodeModule } from "../../src/leaves/node_module.ts";

afterEach(() => vi.unstubAllGlobals());

test("is Node's own", () => {
  expect(nodeModule("node:fs").existsSync).toBe(existsSync);
});

describe.each([
  ["a page without a process", undefined],
  ["a page whose bundler made a process", { env: {} }],
  ["a runtime without that module", { getBuiltinModule: () => undefined }],
])("in %s", (_, process) => {
  test("functions can be taken, and throw when they are called", () => {
    vi.stubGlobal("process", process);
    const { readFile } = nodeModule("node:fs/promises");
    vi.unstubAllGlobals();
    expect(() => readFile("x")).toThrow(UnsupportedError);
    expect(() => readFile("x")).toThrow(/^Cannot call readFile of node:fs\/promises: a page has no file system\./);
    expect(() => readFile("x")).toThrow(
      expect.objectContaining({ part: "runtime", capability: "node:fs/promises" }) as Error,
    );
  });
});
