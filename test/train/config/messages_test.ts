// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** The errors a person would meet, word by word. */
import { expect, test } from "vitest";
import { validateFile } from "../../../src/cluster/convert/inspect/validate.ts";
import { formatProblem } from "../../../src/train/config/problem.ts";
import { attempt, compose, readConfig } from "./disk.ts";

const told = (set: readonly string[], texts: Record<string, string> = {}, allowMissing = true) => {
  const { problems, warnings } = attempt(set, { texts, allowMissing });
  const text = [...problems, ...warnings].map((problem) => formatProblem(problem)).join("\n");
  // Lines of packaged files move whenever a setting is added.
  return text.replace(/(config\/[\w./]+\.yaml):\d+/g, "$1:N");
};

test("a new user's mistakes on the command line", () => {
  const tries = [
    ["rllm.rolout.n=4"],
    ["rllm.rollout.n=four"],
    ["rllm.rollout.n=4.5"],
    ["rllm.rollout.n=0"],
    ["rllm.rollout=4"],
    ["n=4"],
    ["learning_rate=1e-4"],
    ["rllm.trainer.logger=wandb"],
    ["rllm.trainer.logger=[wandv]"],
    ["rllm.algorithm.lr_schedule=cosin"],
    ["rllm.trainer.val_only=yes"],
    ["rllm/backend=tinkr"],
    ["rllm/backend=fireworks"],
    ["rllm/backend=trinity"],
    ["rllm/backnd=verl"],
    ["hydra.run.dir=out"],
    ["tinker_base_url=http://x"],
    ["actor_rollout_ref.rollout.n=4"],
    ["actor_rollout_ref.actor.clip_ratio=0.3"],
    ["rllm.rollout.n=2,4"],
    ["rllm.rollout.n"],
    ["rllm.sdk.proxy.admin_token=hunter2"],
    ["rllm.sdk.proxy.admin_token=********"],
    ["rllm.trainer.experiment_name=${oc.env:RUN_NAME}"],
    [
      "rllm.trainer.experiment_name=${rllm.trainer.project_name}",
      "rllm.trainer.project_name=${rllm.trainer.experiment_name}",
    ],
    ["rllm.trainer.experiment_name=${rllm.no.such}"],
    ["rllm.remote_runtime.enabled=true"],
    ["training.resume_mode=resume_path"],
  ];
  expect(tries.map((set) => `$ ${set.join(" ")}\n${told(set)}`).join("\n\n")).toMatchSnapshot();
});

test("all problems of a file at once, with their lines", () => {
  const text = `# my run
defaults:
  - rllm/backend: tinker
rllm:
  rollout:
    n: "4"
    tain: {temperature: 1}
  algorithm:
    adv_estimator: gppo
    kl_beta: -1
    eps_clip: yes
  data: 5
  sdk: {proxy: {admin_token: hunter2}}
training:
  learning_rat: 1e-5
  lr_schedule: cosin
`;
  const { problems, missing } = validateFile({ name: "run.yaml", text }, { readConfig });
  expect(missing).toEqual(["training.group_size", "validation.group_size"]);
  const output = problems.map((problem) => formatProblem(problem)).join("\n");
  expect(output).toMatchSnapshot();
  expect(output).not.toContain("hunter2");
});

test("broken YAML, missing file, wrong root", () => {
  expect(told([], { "a.yaml": "rllm:\n  rollout: {n: 4\n" })).toMatchSnapshot();
  expect(told([], { "a.yaml": "rllm:\n\trollout: 4\n" })).toMatchSnapshot();
  expect(told([], { "a.yaml": "- 1\n" })).toMatchSnapshot();
  const { problems } = attempt([], { files: ["nope.yaml"] });
  expect(problems.map(formatProblem)).toEqual([
    "error: Cannot read the configuration nope.yaml: there is no such file.",
  ]);
});

test("mandatory settings are refused by name", () => {
  expect(told(["rllm/backend=tinker"], {}, false)).toMatchSnapshot();
  expect(told(["rllm/backend=verl"], {}, false)).toMatchSnapshot();
});

test("one problem is one sentence with its place, several are a list", () => {
  const texts = { "a.yaml": "rllm:\n  rollout:\n    n: x\n" };
  expect(() => compose([], { texts })).toThrow('Cannot set rllm.rollout.n: it takes int >= 1 ("x") (a.yaml:3).');
  expect(() => compose(["nope=1"], { texts })).toThrow(
    /^Cannot use this configuration: it has 2 problems\.\n {2}a\.yaml:3: error: Cannot set/,
  );
});

test("deprecations and conflicts name both paths and values", () => {
  expect(told(["rllm/backend=verl", "algorithm.adv_estimator=rloo"])).toMatchSnapshot();
  expect(told(["rllm/backend=verl", "trainer.project_name=a", "rllm.trainer.project_name=b"])).toMatchSnapshot();
});
