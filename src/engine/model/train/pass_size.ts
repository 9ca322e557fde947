/** How much one pass computes: what was asked for until memory runs out, and less from then on. */

import { OutOfMemoryError } from "../../../leaves/errors.ts";
import { formatBytes } from "../../compute/memory.ts";
import type { Transformer } from "../transformer.ts";

/** How much of a batch is computed at a time, and what of it is kept. */
export interface PassOptions {
  /**
   * Tokens per pass; larger batches take several passes, a longer sequence takes one alone. Default 8192, or less where one
   * binding covers fewer.
   */
  readonly maxTokensPerPass?: number | undefined;
  /**
   * A training pass keeps only the input of each layer, and runs the layer again before its backward: the same bits, less
   * memory, one more forward pass of work. Default `auto`: off, until a sequence does not fit without it.
   */
  readonly gradientCheckpointing?: boolean | "auto" | undefined;
}

/** A pass that ran out of memory. */
export interface RefusedPass {
  readonly tokens: number;
  readonly sequences: number;
  /** `train on` keeps layers for a backward pass. */
  readonly work: "train on" | "score" | "sample after";
}

const DEFAULT_PASS_TOKENS = 8192;

export class PassSize {
  /** Most tokens of several sequences. */
  tokens: number;
  /** Whether layers run again before their backward. */
  recomputes: boolean;
  private refused: OutOfMemoryError | undefined;
  private isOfOneBatch = false;

  constructor({ passLength }: Pick<Transformer, "passLength">, options: PassOptions) {
    this.tokens = Math.min(options.maxTokensPerPass ?? DEFAULT_PASS_TOKENS, passLength);
    this.recomputes = options.gradientCheckpointing === true;
  }

  /**
   * Takes less, after a pass ran out of memory: half its tokens, or for one sequence gradient checkpointing.
   * @throws OutOfMemoryError where neither is left.
   */
  reduce(error: OutOfMemoryError, { tokens, sequences, work }: RefusedPass): void {
    if (sequences > 1) this.tokens = Math.ceil(tokens / 2);
    else if (work === "train on" && !this.recomputes) this.recomputes = true;
    else throw tooLong(error, { tokens, work });
    this.refused = error;
  }

  /** A size to reduce for one batch: this one, if it is that already, or a copy. */
  ofOneBatch(): PassSize {
    if (this.isOfOneBatch) return this;
    const copy = new PassSize({ passLength: this.tokens }, { maxTokensPerPass: this.tokens });
    copy.recomputes = this.recomputes;
    copy.isOfOneBatch = true;
    return copy;
  }

  /** Returns a text about what was reduced since the last call; undefined where nothing was. */
  takeWarning(): string | undefined {
    const error = this.refused;
    if (!error) return undefined;
    this.refused = undefined;
    const more = this.recomputes ? " and keep only the input of each layer" : "";
    const what = `the device ran out of memory (${error.label}, ${formatBytes(error.bytes)}), and the pass was repeated.`;
    if (this.isOfOneBatch)
      return `${what} The passes of this batch, which has more targets than tokens, hold at most ${this.tokens} tokens${more}`;
    const settings = `training.max_tokens_per_pass=${this.tokens}${this.recomputes ? " training.gradient_checkpointing=true" : ""}`;
    return `${what} From now on passes hold at most ${this.tokens} tokens${more}; to start like that, set ${settings}`;
  }
}

function tooLong(cause: OutOfMemoryError, pass: Pick<RefusedPass, "tokens" | "work">): OutOfMemoryError {
  const { label, bytes } = cause;
  const how = pass.work === "train on" ? ", with gradient checkpointing" : "";
  return new OutOfMemoryError(
    `Cannot ${pass.work} a sequence of ${pass.tokens} tokens: a pass over it alone exceeds the device's memory${how} ` +
      `(${label}, ${formatBytes(bytes)}). Shorten prompts or responses (rllm.data.max_prompt_length, max_response_length), ` +
      "hold the model in fewer bytes (model.dtype, model.quantization), or raise memory_budget_bytes.",
    { label, bytes },
    { cause },
  );
}
