/** docs/configuration.md says what is so. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { DEFAULT_VERL, VERL_ENGINES, VERL_VERSIONS } from "../../../src/train/config/fields/verl_tree.ts";
import { getAt } from "../../../src/train/config/yaml/tree.ts";
import { attempt, compose } from "./disk.ts";

const PAGE = readFileSync(new URL("../../../docs/configuration.md", import.meta.url), "utf8");
const codes = (text: string) => [...text.matchAll(/`([^`]+)`/g)].map(([, code]) => code!);

test("every override of the table is taken", () => {
  const table = PAGE.slice(PAGE.indexOf("| you write"), PAGE.indexOf("Values:"));
  const written = table
    .split("\n")
    .flatMap((row) => codes(row))
    .filter((code) => /^[+~]?[+\w./]+=|^~/.test(code));
  expect(written.length).toBeGreaterThan(8);
  for (const override of written) {
    const first = override.startsWith("~") ? ["+own.key=1"] : [];
    expect([override, attempt([...first, override]).problems]).toEqual([override, []]);
  }
});

test("the versions and engines are those that ship", () => {
  const [version, engine] = ["| `verl=", "| `model_engine="].map((start) =>
    codes(PAGE.slice(PAGE.indexOf(start)).split("\n")[0]!),
  );
  expect([...VERL_VERSIONS].sort()).toEqual(version!.slice(1).sort());
  expect(version![1]).toBe(DEFAULT_VERL);
  expect([...VERL_ENGINES["0.8.0"]!].sort()).toEqual(engine!.slice(1).sort());
});

test("a file chooses the tree in the documented form", () => {
  const [defaults] = codes(PAGE).filter((code) => code.startsWith("defaults:"));
  const { config } = compose([], { texts: { "a.yaml": `${defaults}\nrllm: {backend: verl}\n` } });
  expect(getAt(config, "actor_rollout_ref.rollout.max_num_seqs")).toBe(256);
  expect(getAt(config, "actor_rollout_ref.actor.strategy")).toBe("megatron");
});
