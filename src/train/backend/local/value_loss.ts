/** The value loss of a batch, one pass at a time: on the trained tokens of the pass alone, end to end. */
import { countRows, recordValueLoss, rowsOfTokens } from "../../../engine/algorithm/mod.ts";
import type { Device } from "../../../engine/compute/device.ts";
import type { CriticBatch, CriticLoss, Metrics } from "../../../engine/contract/backend.ts";
import { Scratch } from "../../../engine/model/scratch.ts";
import type { ValueOutputs } from "../../../engine/model/train/passes.ts";
import type { ValueModel } from "../../../engine/model/value_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { trainedIndices, withBatchTotals } from "./policy_loss.ts";

/**
 * Adds the gradient of the clipped value loss over a batch to a critic's gradient, pass by pass.
 * @returns the loss's metrics over the batch.
 * @throws ConfigError for an array of the wrong length, or a batch without a trained token
 */
export async function accumulateValueLoss(model: ValueModel, batch: CriticBatch, spec: CriticLoss): Promise<Metrics> {
  checkBatch(batch);
  const shared = withBatchTotals(batch, spec);
  const passes = await model.accumulate(batch, {
    loss: (outputs) => passLoss(model.device, batch, { spec: shared, outputs }),
  });
  return combine(passes.map(({ loss, data }) => ({ ...loss.decode(data), tokens: loss.tokens })));
}

function checkBatch(batch: CriticBatch): void {
  const tokens = batch.tokens.length;
  for (const name of ["mask", "oldValues", "returns"] as const) {
    const { length } = batch[name];
    if (length !== tokens)
      throw new ConfigError(
        `Cannot train the critic: ${name} must have one element per token (${length} of ${tokens}).`,
        {
          path: name,
        },
      );
  }
  if (!batch.mask.includes(1))
    throw new ConfigError("Cannot train the critic on the batch: its mask is 0 for every token.");
}

type Spec = ReturnType<typeof withBatchTotals<CriticLoss>>;

function passLoss(device: Device, batch: CriticBatch, { spec, outputs }: { spec: Spec; outputs: ValueOutputs }) {
  return Scratch.unlessThrown(device, (scratch) => {
    const at = trainedIndices(batch, outputs.sequences);
    const upload = (values: Float32Array, label: string) =>
      scratch.upload(
        Float32Array.from(at, (t) => values[t]!),
        label,
      );
    const mask = new Uint32Array(at.length).fill(1);
    const recorded = recordValueLoss(device, spec, {
      counts: countRows(outputs.offsets, mask),
      buffers: {
        values: outputs.values,
        oldValues: upload(batch.oldValues, "old values"),
        returns: upload(batch.returns, "returns"),
        mask: scratch.upload(mask, "mask"),
        trajectoryOfToken: scratch.upload(rowsOfTokens(outputs.offsets), "rows of tokens"),
      },
    });
    const release = () => {
      recorded.release();
      scratch.release();
    };
    return { ...recorded, release, tokens: at.length };
  });
}

/** The metrics of the batch: the loss is a sum over the passes, the others are means over their tokens. */
function combine(passes: readonly { metrics: Metrics; tokens: number }[]): Metrics {
  const tokens = passes.reduce((sum, pass) => sum + pass.tokens, 0);
  const combined: Metrics = {};
  for (const pass of passes)
    for (const [name, value] of Object.entries(pass.metrics)) {
      const share = name === "critic/vf_loss" ? 1 : pass.tokens / tokens;
      combined[name] = (combined[name] ?? 0) + share * value;
    }
  return combined;
}
