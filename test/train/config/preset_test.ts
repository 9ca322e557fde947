/** Algorithms by their papers: `+preset=NAME`. */
import { readdirSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { findEstimator } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { findLoss } from "../../../src/engine/algorithm/loss/losses.ts";
import { composeConfig, tryCompose } from "../../../src/train/config/compose.ts";
import { PRESETS } from "../../../src/train/config/hydra/groups.ts";
import { getAt, leaves } from "../../../src/train/config/yaml/tree.ts";
import { readConfig } from "./disk.ts";

const FOLDER = new URL("../../../config/preset/", import.meta.url);
const MODEL = { local: ["model.name=m"], tinker: ["model.name=m"], verl: [] };

test("every file of config/preset can be chosen", () => {
  expect(readdirSync(FOLDER).sort()).toEqual([...PRESETS].sort().map((name) => `${name}.yaml`));
});

describe.each(PRESETS)("%s", (name) => {
  const preset = `+preset=${name}`;

  test("names its paper and sets the algorithm alone", () => {
    expect(readConfig(`preset/${name}.yaml`)).toMatch(/^# .*\d{4}, https:\/\/arxiv\.org\/abs\/\d{4}\.\d{5}\b/);
    const { config, origins } = composeConfig({ readConfig, overrides: [preset, ...MODEL.local] });
    const own = [...origins].filter(([, { file }]) => file === `config/preset/${name}.yaml`).map(([path]) => path);
    expect(own.length).toBeGreaterThan(3);
    for (const path of own) expect(path).toMatch(/^rllm\.(algorithm\.(?!estimator_args)|rejection_sample\.)/);
    expect(findEstimator(String(getAt(config, "rllm.algorithm.adv_estimator")))).toBeDefined();
    expect(findLoss(String(getAt(config, "rllm.algorithm.loss_fn")))).toBeDefined();
  });

  test.each(["local", "tinker", "verl"] as const)("composes on %s", (backend) => {
    const overrides = [`rllm/backend=${backend}`, preset, ...MODEL[backend]];
    const { problems } = tryCompose({ readConfig, overrides, allowMissing: true });
    const refused = name === "dapo" && backend === "verl" ? ["rllm.rejection_sample.filter_uniform_groups"] : [];
    expect(problems.map(({ path }) => path)).toEqual(refused);
  });
});

const RUN = "defaults:\n  - preset: gspo\n  - _self_\nrllm:\n  algorithm:\n    eps_clip: 0.001\n";
const PLAIN = "rllm:\n  algorithm:\n    eps_clip: 0.001\n";

test.each<[string, string, string[], number, string]>([
  ["a file's own values win over its preset", RUN, [], 0.001, "gspo"],
  ["a preset replaces the file's in its place", RUN, ["preset=cispo"], 0.001, "cispo"],
  ["one that is added wins over the file", RUN, ["+preset=cispo"], 10, "cispo"],
  ["without one in the file both forms add", PLAIN, ["preset=gspo"], 3e-4, "gspo"],
  ["the later of two wins", PLAIN, ["+preset=gspo", "+preset=cispo"], 10, "cispo"],
  ["overrides win, wherever they stand", PLAIN, ["rllm.algorithm.eps_clip=0.5", "+preset=gspo"], 0.5, "gspo"],
])("%s", (_, text, overrides, clip, loss) => {
  const files = { files: ["run.yaml"], readFile: () => text };
  const { config } = composeConfig({ readConfig, ...files, overrides: [...overrides, "model.name=m"] });
  expect(getAt(config, "rllm.algorithm.eps_clip")).toBe(clip);
  expect(getAt(config, "rllm.algorithm.loss_fn")).toBe(loss);
});

test.each([
  ["+preset=gsp", /preset=gsp: the choices are grpo, .*\. Did you mean preset=gspo\?/],
  ["~preset=gspo", /groups can only be chosen/],
])("%s is refused", (override, message) => {
  const { problems } = tryCompose({ readConfig, overrides: [override, "model.name=m"] });
  expect(problems.map((problem) => problem.message).join("\n")).toMatch(message);
});

describe("conversion", () => {
  const convertRun = (text: string, args = "") => {
    const files = [{ name: "run.yaml", text }, ...(args === "" ? [] : [{ name: "overrides.args", text: args }])];
    return convert(readSource(files, "rllm", { readConfig }), { to: "verl", readConfig });
  };

  test.each([
    ["of the file", RUN, "", "gspo", 0.001],
    ["of the command line", PLAIN, "+preset=gspo", "gspo", 3e-4],
    ["beneath the overrides", PLAIN, "rllm.algorithm.eps_clip=0.5\n+preset=gspo", "gspo", 0.5],
    ["in the place of the file's", RUN, "preset=cispo", "cispo", 0.001],
    ["above the file's", RUN, "+preset=cispo", "cispo", 10],
    ["where the file has none", PLAIN, "preset=gspo", "gspo", 3e-4],
    [
      "above the file's own values",
      RUN.replace(/ {2}- preset.*\n {2}- _self_/, "  - _self_\n  - preset: gspo"),
      "",
      "gspo",
      3e-4,
    ],
  ])("takes the settings of a preset %s", (_, text, args, loss, clip) => {
    const { problems, values } = convertRun(text, args);
    expect(problems).toEqual([]);
    expect(values.get("actor_rollout_ref.actor.policy_loss.loss_mode")?.value).toBe(loss);
    expect(values.get("actor_rollout_ref.actor.clip_ratio_low")?.value).toBe(clip);
  });

  test("names a preset that does not exist, and its line", () => {
    const { problems } = readSource([{ name: "run.yaml", text: RUN.replace("gspo", "own") }], "rllm", { readConfig });
    expect(problems).toEqual([
      {
        severity: "error",
        message: expect.stringMatching(/^Cannot choose preset=own: the choices are grpo, .*[.?]$/),
        file: "run.yaml",
        line: 1,
        path: "preset",
      },
    ]);
    const [problem] = readSource([{ name: "x.args", text: "+preset=../../secret" }], "rllm", { readConfig }).problems;
    expect(problem?.message).toMatch(/^Cannot choose preset=\.\.\/\.\.\/secret: the choices are/);
  });
});

test("no preset has a setting that the base configuration lacks", () => {
  const { config } = composeConfig({ readConfig, overrides: MODEL.local });
  const known = new Set([...leaves(config)].map(([path]) => path));
  const { values } = readSource(
    PRESETS.map((name) => ({ name: `${name}.yaml`, text: readConfig(`preset/${name}.yaml`) ?? "" })),
    "rllm",
  );
  expect([...values.keys()].filter((path) => !known.has(path))).toEqual([]);
});
