/** The loop's settings as they come out of a composed configuration. */
import { describe, expect, test } from "vitest";
import type { Tree } from "../../../src/train/config/yaml/tree.ts";
import { loopSettings } from "../../../src/train/loop/settings.ts";
import { settingsFromConfig } from "../../../src/train/loop/settings_config.ts";
import { compose } from "../config/disk.ts";

const settingsOf = (...overrides: string[]) => settingsFromConfig(compose(overrides).config);

test("every value reaches the setting of its name", () => {
  const settings = settingsOf("rllm.rollout.n=3", "rllm.rollout.train.top_k=7", "rllm.rollout.val.top_k=9");
  expect(settings.rollout).toMatchObject({ n: 3, train: { top_k: 7 }, val: { top_k: 9 } });
  expect(Object.keys(settings).sort()).toEqual(Object.keys(loopSettings({})).sort());
});

test.each([
  [["rllm.workflow.workflow_args.timeout=40"], 40],
  [["rllm.workflow.workflow_args.timeout=40", "rllm.agent.trajectory_timeout=30"], 30],
  [["rllm.workflow.workflow_args.timeout=40", "rllm.agent.trajectory_timeout=50"], 40],
])("the shorter time limit counts: %j", (overrides, timeout) => {
  const { workflow } = settingsOf(...overrides, "rllm.workflow.n_parallel_tasks=5");
  expect(workflow).toMatchObject({ n_parallel_tasks: 5, workflow_args: { timeout } });
});

describe("a sampling setting that the sampler does not have is refused with those it has", () => {
  test.each(["train", "val"])("rllm.rollout.%s", (section) => {
    const config = structuredClone(compose([]).config) as { rllm: { rollout: Record<string, Tree> } };
    config.rllm.rollout[section]!.min_p = 0.1;
    expect(() => settingsFromConfig(config as unknown as Tree)).toThrow(
      "Cannot sample: the sampler has no setting min_p. It has temperature, top_p, top_k, max_tokens " +
        `(rllm.rollout.${section}.min_p).`,
    );
  });
});
