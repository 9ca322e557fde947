import { expect, test } from "vitest";
import { learningOptions, namedBenches, peerModel } from "../../bench/options.ts";

const KNOWN = { tasks: ["arithmetic", "game"], presets: ["grpo", "dapo"] };

test("names are benchmarks, and an option's value is none", () => {
  expect(namedBenches(["matmul", "model", "--json", "--save"])).toEqual(["matmul", "model"]);
  expect(namedBenches(["algorithms", "--seeds", "3", "--presets", "dapo"])).toEqual(["algorithms"]);
});

test("peers takes a model folder", () => {
  const args = ["peers", "--model", "DIR", "--save"];
  expect(namedBenches(args)).toEqual(["peers"]);
  expect(peerModel(args)).toBe("DIR");
});

test.each([
  [["matmul", "--seeds", "3"], "--seeds is for algorithms alone"],
  [["--presets", "dapo"], "--presets is for algorithms alone"],
  [["algorithms", "--model", "DIR"], "--model is for peers alone"],
  [["matmul", "--sede", "3"], "Unknown option '--sede'"],
])("%j is refused", (args, message) => {
  expect(() => namedBenches(args)).toThrow(message);
});

test("algorithms runs every preset on every task over five seeds, or what is chosen", () => {
  expect(learningOptions(["algorithms"], KNOWN)).toEqual({ seeds: 5, ...KNOWN, device: undefined, runs: undefined });
  const args = [
    "algorithms",
    "--seeds=2",
    "--tasks=game",
    "--presets",
    "dapo,grpo",
    "--device",
    "cpu",
    "--runs",
    "kept",
  ];
  expect(learningOptions(args, KNOWN)).toEqual({
    seeds: 2,
    tasks: ["game"],
    presets: ["dapo", "grpo"],
    device: "cpu",
    runs: "kept",
  });
});

test.each([
  [["--seeds", "0"], "--seeds takes a whole number from 1 (0)"],
  [["--seeds", "two"], "--seeds takes a whole number from 1 (two)"],
  [["--tasks", "chess"], "--tasks has arithmetic, game (chess)"],
  [["--presets", "dapo,"], "--presets has grpo, dapo ()"],
])("algorithms refuses %j", (args, message) => {
  expect(() => learningOptions(args, KNOWN)).toThrow(message);
});
