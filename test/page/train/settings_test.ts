/** The address of the page that trains: what it holds comes back, and what it cannot hold is named. */
import { describe, expect, test } from "vitest";
import { type Address, readAddress, START, writeAddress } from "../../../page/train/settings.ts";

describe("an address comes back as it was", () => {
  const cases: [text: string, address: Address][] = [
    ["", START],
    ["#task=sums", { ...START, recipe: "sums" }],
    ["#device=cpu&training.seed=3", { ...START, device: "cpu", runs: [{ "training.seed": "3" }] }],
    ["#runs=2", { ...START, runs: [{}, {}] }],
    [
      "#task=stories&rllm.rollout.n=4&runs=2&2:rllm.algorithm.adv_estimator=trl.grpo",
      {
        recipe: "stories",
        device: "auto",
        runs: [{ "rllm.rollout.n": "4" }, { "rllm.algorithm.adv_estimator": "trl.grpo" }],
      },
    ],
  ];
  test.each(cases)("%s", (text, address) => {
    expect(writeAddress(address)).toBe(text);
    expect(readAddress(text)).toEqual({ address, faults: [] });
  });
});

test("a setting of the second run makes two runs", () => {
  expect(readAddress("#2:training.seed=1").address.runs).toEqual([{}, { "training.seed": "1" }]);
});

describe("what an address cannot hold is left out and named", () => {
  const cases: [text: string, fault: string][] = [
    [
      "#task=poems",
      "Cannot use task=poems of the address: there is no such task. It takes digits, sums, turns, stories.",
    ],
    ["#device=tpu", "Cannot use device=tpu of the address: there is no such device. It takes auto, webgpu, cpu."],
    ["#runs=9", "Cannot use runs=9 of the address: there is no such runs. It takes 1, 2."],
    [
      "#rllm.rolout.n=4",
      "Cannot use rllm.rolout.n of the address: the page has no such setting. Did you mean rllm.rollout.n?",
    ],
    [
      "#training.learning_rate=fast",
      "Cannot use training.learning_rate of the address: it takes a number (fast). Correct it, or remove it.",
    ],
    ["#training.seed=", "Cannot use training.seed of the address: it takes a number (). Correct it, or remove it."],
    [
      "#rllm.algorithm.loss_fn=a,b",
      "Cannot use rllm.algorithm.loss_fn of the address: it takes a name (a,b). Correct it, or remove it.",
    ],
  ];
  test.each(cases)("%s", (text, fault) => {
    const { address, faults } = readAddress(text);
    expect(faults).toEqual([fault]);
    expect(address.runs[0]).toEqual({});
  });
  test("the rest of the address counts", () => {
    const { address, faults } = readAddress("#nothing=1&training.seed=2");
    expect(faults).toHaveLength(1);
    expect(address.runs).toEqual([{ "training.seed": "2" }]);
  });
});
