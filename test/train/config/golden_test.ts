/** The two worked examples of Trinity's alignment guide convert exactly, both ways. */
import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import type { ConvertOptions } from "../../../src/cluster/convert/contract.ts";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { convertedTree, writeArgs, writeYaml } from "../../../src/cluster/convert/write.ts";
import { readYaml } from "../../../src/train/config/yaml/read.ts";
import type { YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { readConfig } from "./disk.ts";

const folder = new URL("../../../../shared/golden/config/", import.meta.url);
const read = (name: string) => readFileSync(new URL(name, folder), "utf8");
const ENGINES = "explorer.rollout_model.engine_num";

const CASES: Record<string, { trinity: Record<string, YamlValue>; verl: Record<string, YamlValue> }> = {
  grpo: {
    trinity: { [ENGINES]: 1 },
    verl: { "data.truncation": "error", "actor_rollout_ref.rollout.name": "vllm" },
  },
  ppo: {
    trinity: {
      [ENGINES]: 2,
      "explorer.auxiliary_models.0.engine_num": 2,
      "explorer.auxiliary_models.0.tensor_parallel_size": 1,
      "buffer.explorer_input.tasksets.1.rollout_args.temperature": 1,
    },
    verl: {
      "data.truncation": "error",
      "data.return_raw_chat": true,
      "actor_rollout_ref.rollout.name": "vllm",
      "reward_model.model.use_remove_padding": true,
      "reward_model.model.fsdp_config.param_offload": true,
      "reward_model.micro_batch_size_per_gpu": 32,
    },
  },
};

const options = (profile: Record<string, YamlValue>): ConvertOptions => ({
  profile: new Map(Object.entries(profile)),
});

const present = existsSync(folder);
describe.skipIf(!present)("worked examples", () => {
  // The body of a skipped describe runs too: nothing is read where there is nothing to read.
  for (const [name, profile] of Object.entries(present ? CASES : {})) {
    const args = readSource([{ name: `${name}.args`, text: read(`trinity_${name}.verl.args`) }], "verl");
    const yaml = readSource([{ name: `${name}.yaml`, text: read(`trinity_${name}.yaml`) }], "trinity");

    test(`${name}: verl to Trinity, in the guide's values and order`, () => {
      const result = convert(args, { to: "trinity", readConfig, ...options(profile.trinity) });
      expect(result.problems).toEqual([]);
      const text = writeYaml(result.values, { system: "trinity", source: args });
      const [ours, theirs] = [readYaml(text, "out").tree, readYaml(read(`trinity_${name}.yaml`), "golden").tree];
      expect(ours).toEqual(theirs);
      expect(JSON.stringify(ours)).toBe(JSON.stringify(theirs));
    });

    test(`${name}: Trinity to verl, every override and no other`, () => {
      const result = convert(yaml, { to: "verl", readConfig, ...options(profile.verl) });
      expect(result.problems).toEqual([]);
      const back = readSource([{ name: "out.args", text: writeArgs(result.values) }], "verl");
      const plain = (source: typeof back) =>
        Object.fromEntries([...source.values].map(([path, { value }]) => [path, value]));
      expect(plain(back)).toEqual(plain(args));
    });

    test(`${name}: nothing is lost without being told`, () => {
      const result = convert(args, { to: "trinity", readConfig, ...options(profile.trinity) });
      const told = new Set(result.notes.flatMap(({ from }) => from?.split(" + ") ?? []));
      expect([...args.values.keys()].filter((path) => !told.has(path))).toEqual([]);
      const dropped = result.notes.filter(({ kind }) => kind === "dropped").map(({ from }) => from);
      expect(dropped.sort()).toEqual(Object.keys(profile.verl).sort());
    });
  }

  test("a setting without a source gets a value and a note", () => {
    const args = readSource([{ name: "ppo.args", text: read("trinity_ppo.verl.args") }], "verl");
    const { problems, values, notes } = convert(args, { to: "trinity", readConfig });
    expect(problems).toEqual([]);
    const chosen = ["explorer.auxiliary_models.0.engine_num", ENGINES];
    expect(chosen.map((path) => values.get(path)?.value)).toEqual([1, 3]);
    const said = notes.filter(({ kind, to }) => kind === "computed" && chosen.includes(to ?? ""));
    expect(said.every(({ message }) => message?.includes("choose another in the profile"))).toBe(true);
    expect(said).toHaveLength(2);
  });

  test("the tree of values is the YAML's", () => {
    const args = readSource([{ name: "grpo.args", text: read("trinity_grpo.verl.args") }], "verl");
    const result = convert(args, { to: "trinity", readConfig, ...options(CASES.grpo!.trinity) });
    expect(convertedTree(result.values)).toEqual(readYaml(read("trinity_grpo.yaml"), "golden").tree);
  });
});
