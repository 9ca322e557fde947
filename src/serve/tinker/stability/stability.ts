/** How a server serves the loss `stable_reinforce`, whose formula is not published: by a published method that fits its description. */
import { type LossRequest, type LossRows, RECORDED_TOP } from "../../../engine/contract/engine.ts";
import type { ForwardBackwardMessage, RequestDatum } from "../protocol/forward_backward.ts";
import { Refusal } from "../protocol/outcome.ts";
import { RecordedSequences } from "./recorded_sequences.ts";
import { sampledTargets } from "./sampled_targets.ts";

/** The methods that `stable_reinforce` may stand for, by the engine's names of their losses. */
export type StableMethod = "score_centering";

const STABLE_REINFORCE = "stable_reinforce";
/** Bytes of a target: token, log-prob, place, log-prob of the trained policy and slope of each recorded token. */
const TARGET_BYTES = 20 * RECORDED_TOP;

export class Stability {
  readonly method: StableMethod | undefined;
  readonly recorded: RecordedSequences;

  constructor({ method, budgetBytes }: { method?: StableMethod | undefined; budgetBytes: number }) {
    this.method = method;
    this.recorded = new RecordedSequences({ budgetBytes });
  }

  /** @throws Refusal 422 where the server has no method for the loss */
  refuseRecording(): void {
    if (this.method) return;
    throw new Refusal(
      422,
      "Cannot record stability information (record_stability_info): only the loss stable_reinforce uses it, whose formula is not published. Sample without record_stability_info and train with importance_sampling, cispo or gspo, or start the server with --stable-reinforce score_centering, which serves the name by a published method that fits its description.",
    );
  }

  /** The engine's loss for a client's. Without a method the engine refuses the name. */
  lossOf(loss: LossRequest): LossRequest {
    return loss.name === STABLE_REINFORCE && this.method ? { ...loss, name: this.method } : loss;
  }

  /** Memory that a request of the loss takes in addition: what was recorded at its targets. */
  bytesOf({ lossFn, data }: Pick<ForwardBackwardMessage, "lossFn" | "data">): number {
    if (!this.method || lossFn !== STABLE_REINFORCE) return 0;
    const targets = data.reduce((sum, { inputs }) => sum + (inputs.get("target_tokens")?.values.length ?? 0), 0);
    return TARGET_BYTES * targets;
  }

  /** The rows of a loss, with what was sampled where the loss needs it. @throws ConfigError naming the datum */
  rowsOf(rows: LossRows, of: { loss: LossRequest; data: readonly RequestDatum[]; session: string }): LossRows {
    if (!this.method || of.loss.name !== this.method) return rows;
    const sampled = sampledTargets(of.data, rows, (id) => this.recorded.use(id, of.session));
    return { ...rows, sampled };
  }
}
