/** Reward models: a score for a whole sequence, which pairs of preferred and other answers teach. */
import type { Backend, Metrics, OptimParams, PackedTokens } from "./backend.ts";
import type { Tokenizer } from "./text.ts";

/** Scores sequences. */
export interface Scorer {
  /** The scalar head's value at the last token of each sequence, [N]. */
  scores(rows: PackedTokens): Promise<Float32Array>;
}

/** A reward model that scores rollouts and does not change. */
export interface RewardScorer extends Scorer {
  /** Name for messages. */
  readonly name: string;
  readonly tokenizer?: Tokenizer | undefined;
  readonly vocabSize: number;
  /** Longest sequence that it scores, tokens. */
  readonly contextLength: number;
  /** Makes it again after the loss of its device, which is open again. */
  recover?(): Promise<void>;
  close(): void;
}

/** Methods of a trained model that a run needs between the steps: to count them, to save it and to bring it back. */
export type Resumable = Pick<
  Backend,
  "weightVersion" | "critic" | "onWarning" | "freezeReference" | "keep" | "recover" | "save" | "load" | "takeWork"
>;

/** A reward model that trains. */
export interface RewardModel extends Scorer, Resumable, Pick<Backend, "name" | "model" | "tokenizer" | "close"> {
  /** Adds the gradient of a loss whose slopes in the scores are `dscores`, [N], to the sum since the last `optimStep`. */
  backward(rows: PackedTokens, dscores: Float32Array): Promise<void>;
  /** Takes one AdamW step on the summed gradient and clears it. Returns the gradient's norm as `grad_norm`. */
  optimStep(params: OptimParams): Promise<Metrics>;
}
