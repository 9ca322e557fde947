/** The figures of TRL's formulas in PyTorch: test/fixtures/preference/make.py. */
import { readFileSync } from "node:fs";
import type { PreferenceBatch } from "../../../src/engine/algorithm/preference/host.ts";
import type { PreferenceSpec } from "../../../src/engine/algorithm/preference/resolve.ts";
import { offsetsOf } from "../../../src/engine/packing/offsets.ts";

interface GoldenPreference extends PreferenceSpec {
  readonly loss: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly dlogprobs: readonly number[];
}

interface Fixture {
  readonly lengths: number[];
  readonly prompts: number[];
  readonly labels: number[];
  readonly logprobs: number[];
  readonly refLogprobs: number[];
  readonly cases: GoldenPreference[];
}

const fixture = JSON.parse(
  readFileSync(new URL("../../fixtures/preference/losses.json", import.meta.url), "utf8"),
) as Fixture;

export const GOLDEN_PREFERENCES = fixture.cases.map((golden) => ({
  ...golden,
  title: `${golden.loss_type} ${JSON.stringify(golden.settings)}`,
}));

/** The batch of the figures: TRL's likelihood term of ORPO counts the prompt too. */
export function goldenBatch({ loss_type }: PreferenceSpec): PreferenceBatch {
  const { lengths, prompts, labels, logprobs, refLogprobs } = fixture;
  const marked = (first: (row: number) => number) =>
    Uint32Array.from(lengths.flatMap((n, row) => Array.from({ length: n }, (_, t) => Number(t >= first(row)))));
  return {
    offsets: offsetsOf(lengths),
    mask: marked((row) => prompts[row]!),
    logprobs,
    refLogprobs,
    ...(loss_type === "orpo" && { nllMask: marked(() => 1) }),
    ...(loss_type === "kto" && { labels: Uint32Array.from(labels) }),
  };
}
