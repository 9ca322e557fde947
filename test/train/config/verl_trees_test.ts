/** The packaged trees against what Hydra composes from verl's published packages, where a Python here has Hydra. */
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { VERL_ENGINES, VERL_VERSIONS, verlLeaves } from "../../../src/train/config/fields/verl_tree.ts";
import { interpolator } from "../../../src/train/config/hydra/interpolate.ts";
import { leaves, type Tree, unflatten } from "../../../src/train/config/yaml/tree.ts";
import { pythonWith } from "../../fixtures/python.ts";
import { readConfig } from "./disk.ts";

const at = (path: string) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
const python = pythonWith("hydra");

function publishedTrees(wheel: string, ...flags: string[]): Record<string, Tree> {
  const args = [at("scripts/verl_trees.py"), wheel, ...flags];
  return JSON.parse(execFileSync(python as string, args, { encoding: "utf8", maxBuffer: 2 ** 26 }));
}

describe.each(VERL_VERSIONS)("verl %s", (version) => {
  const wheel = at(`.cache/verl/verl-${version}-py3-none-any.whl`);

  describe.skipIf(python === undefined || !existsSync(wheel))("as it is published", () => {
    const packaged = (engine: string) =>
      [...verlLeaves(readConfig, version, engine)].map(([path, { value }]) => [path, value] as const);

    test("every engine, key and value, and no other", () => {
      const published = publishedTrees(wheel);
      expect(Object.keys(published)).toEqual(VERL_ENGINES[version]);
      for (const [engine, tree] of Object.entries(published)) {
        expect(Object.fromEntries(packaged(engine))).toEqual(Object.fromEntries(leaves(tree)));
      }
    });

    test("interpolations resolve alike", () => {
      for (const [engine, tree] of Object.entries(publishedTrees(wheel, "--resolve"))) {
        const ours = unflatten(packaged(engine));
        expect(interpolator(ours, process.env).resolve(ours, "")).toEqual(tree);
      }
    });
  });
});
