/** Each kernel of the algorithms beside its shader, and its workgroups, counted by hand: the last one is filled in part. */
import { describe, expect, test } from "vitest";
import * as advantage from "../../../src/engine/algorithm/advantage/kernels.ts";
import * as correction from "../../../src/engine/algorithm/correction/kernels.ts";
import { STATISTICS } from "../../../src/engine/algorithm/correction/statistics.ts";
import * as logprobs from "../../../src/engine/algorithm/logprobs/kernels.ts";
import * as entropy from "../../../src/engine/algorithm/loss/entropy_kernel.ts";
import * as kl from "../../../src/engine/algorithm/loss/kl_loss.ts";
import { meanLogRatio } from "../../../src/engine/algorithm/loss/losses/mean_log_ratio.ts";
import * as selection from "../../../src/engine/algorithm/loss/selection_kernels.ts";
import * as value from "../../../src/engine/algorithm/loss/value_loss.ts";
import * as bradleyTerry from "../../../src/engine/algorithm/preference/bradley_terry.ts";
import { builtInPreferenceLosses } from "../../../src/engine/algorithm/preference/losses.ts";
import type { Grid } from "../../../src/engine/compute/kernel.ts";
import { expectContract, kernelsOf } from "../../fixtures/kernel_contract.ts";
import { lossKernels } from "../../fixtures/loss_kernels.ts";

const MODULES = { advantage, bradleyTerry, correction, entropy, logprobs, kl, selection, value };
const PREFERENCES = [...new Set(builtInPreferenceLosses().map(({ form }) => form.kernel))];
const KERNELS = [
  ...kernelsOf(MODULES),
  ...lossKernels(),
  ...PREFERENCES,
  ...STATISTICS.map(correction.correctionReject),
];

describe("a kernel's value says what its shader declares", () => {
  test.each(KERNELS)("$name", expectContract);
});

interface Sized {
  readonly name: string;
  readonly constants?: Readonly<Record<string, number>> | undefined;
  grid(params: never, constants: Readonly<Record<string, number>>): Grid;
}

const MANY = 65_535 * 64 + 1;

test.each<[Sized, Record<string, number>, number[], Record<string, number>?]>([
  // A thread for a group, 256 workgroups at most, or for a row.
  [advantage.advantageGroup, { groups: 65 }, [2]],
  [advantage.advantageGroup, { groups: 256 * 64 + 1 }, [256]],
  [advantage.advantageFixed, { groups: 65 }, [2]],
  [advantage.advantageBaseline, { groups: 65 }, [2]],
  [advantage.advantageRows, { rows: 65 }, [2]],
  [advantage.advantageRows, { rows: MANY }, [32_768, 2]],
  [advantage.advantagePower, { rows: 65 }, [2]],
  [advantage.advantagePower, { rows: MANY }, [32_768, 2]],
  [correction.correctionWeights, { rows: 65 }, [2]],
  [correction.correctionReject(STATISTICS[0]!), { rows: MANY }, [32_768, 2]],
  [meanLogRatio.kernel, { rows: 65 }, [2]],
  [meanLogRatio.kernel, { rows: MANY }, [32_768, 2]],
  [logprobs.logitsForward, { rows: 9 }, [2]],
  [logprobs.logitsForward, { rows: 9 }, [1], { WORKGROUP: 128 }],
  // 16 vec4s of a row in each of 8 threads.
  [logprobs.logitsBackward, { rows: 3, stride: 516 }, [6]],
  [bradleyTerry.bradleyTerry, { pairs: 65 }, [2]],
  [bradleyTerry.bradleyTerry, { pairs: MANY }, [32_768, 2]],
  // A workgroup for a pair.
  [PREFERENCES[0]!, { units: 65 }, [65]],
  [PREFERENCES[0]!, { units: 65_536 }, [32_768, 2]],
  // Sums whose order must not depend on the size.
  [advantage.advantageSums, { count: 1 }, [64]],
  [advantage.advantageWhiten, { count: 1 }, [64]],
  [lossKernels()[0]!, { tokens: 1 }, [256]],
  [entropy.lossEntropy, { tokens: 1 }, [64]],
  [kl.klValues, { tokens: 1 }, [64]],
  [value.lossValue, { tokens: 1 }, [64]],
  [selection.selectionMeans, { tokens: 1 }, [64]],
  [selection.selectionKeys, { tokens: 1 }, [64]],
  [selection.selectionHistogram, { tokens: 1 }, [64]],
  [selection.selectionThreshold, {}, [1]],
])("$0.name of $1 has $2 workgroups", ({ grid, constants = {} }, params, expected, changed) => {
  const [x, y = 1, z = 1] = grid(params as never, { ...constants, ...changed });
  expect([x, y, z]).toEqual([...expected, 1, 1].slice(0, 3));
});
