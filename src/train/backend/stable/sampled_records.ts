/**
 * The sequences that were recorded for `stable_reinforce` when they were sampled, and where the tokens of a training row lie in them. They are
 * found by their content: a row holds the prompt and the sampled tokens of each request that it comes from.
 */
import { ConfigError } from "../../../leaves/errors.ts";

/** Consecutive tokens of a row that are those from `offset` on of a sequence's sampled tokens, or of its prompt. */
export interface SampledSpan {
  readonly kind: "prompt" | "sampled";
  readonly sequenceId: string;
  readonly offset: number;
  readonly length: number;
}

export interface SampledRecord {
  readonly sequenceId: string;
  readonly prompt: readonly number[];
  readonly tokens: readonly number[];
  /** Log-probs of the tokens. */
  readonly logprobs: readonly number[];
  readonly temperature: number;
  /** The sampler's top tokens at each token, where they are kept here: the backend that trains may have them. */
  readonly top?: RecordedTop | undefined;
}

/** A sampler's most likely tokens at each of its tokens: [n, k] row-major. */
export interface RecordedTop {
  readonly k: number;
  readonly tokens: Uint32Array;
  readonly logprobs: Float32Array;
}

interface Entry {
  readonly sequenceId: string;
  readonly prompt: Uint32Array;
  readonly tokens: Uint32Array;
  readonly logprobs: Float32Array;
  readonly temperature: number;
  readonly top: RecordedTop | undefined;
  readonly hash: number;
}

/** A row to find. */
export interface SampledRow {
  readonly tokens: Uint32Array;
  /** 1 = trained on. */
  readonly mask: Uint32Array;
  /** The sampler's log-probs, which tell samples of other weights apart. */
  readonly logprobs?: Float32Array | undefined;
  /** That it was sampled at. */
  readonly temperature: number;
  /** Row, for errors. */
  readonly row: number;
}

/** Limit of sequences without their samplers' tokens: more of them than a server records with its default memory. */
const MOST_BYTES = 64 * 2 ** 20;

export class SampledRecords {
  /** Entries by the hash of their prompts, in the order in which they were sampled. */
  private readonly byPrompt = new Map<number, Entry[]>();
  /** Entries by id, the oldest first. */
  private readonly byId = new Map<string, Entry>();
  private readonly mostBytes: number;
  private held = 0;

  constructor({ mostBytes = MOST_BYTES }: { mostBytes?: number } = {}) {
    this.mostBytes = mostBytes;
  }

  /** Returns the top tokens that the sampler of a sequence recorded. @param span of {@link spansOf} */
  topOf({ sequenceId }: SampledSpan): RecordedTop | undefined {
    return this.byId.get(sequenceId)?.top;
  }

  /** Keeps a sequence; the oldest ones make room. */
  add({ sequenceId, prompt, tokens, logprobs, temperature, top }: SampledRecord): void {
    const same = this.byId.get(sequenceId);
    if (same) this.drop(same);
    const hash = prompt.reduce(nextHash, 0);
    const bucket = this.byPrompt.get(hash) ?? [];
    this.byPrompt.set(hash, bucket);
    const entry = {
      ...{ sequenceId, temperature, top, hash },
      prompt: Uint32Array.from(prompt),
      tokens: Uint32Array.from(tokens),
      logprobs: Float32Array.from(logprobs),
    };
    bucket.push(entry);
    this.byId.set(sequenceId, entry);
    this.held += bytesOf(entry);
    for (const oldest of this.byId.values()) {
      if (this.held <= this.mostBytes) break;
      this.drop(oldest);
    }
  }

  private drop(entry: Entry): void {
    this.byId.delete(entry.sequenceId);
    this.held -= bytesOf(entry);
    const left = this.byPrompt.get(entry.hash)!.filter((other) => other !== entry);
    if (left.length > 0) this.byPrompt.set(entry.hash, left);
    else this.byPrompt.delete(entry.hash);
  }

  /**
   * The spans of a row up to the end of its last sampled run, in the order of its tokens; none for a row without a trained token. What
   * lies before a sampled run is in the prompt that the run was sampled after.
   * @throws {ConfigError} for a trained token that no recorded sequence has
   */
  spansOf(row: SampledRow): SampledSpan[] {
    const { tokens, mask } = row;
    const spans: SampledSpan[] = [];
    let [hash, covered] = [0, 0];
    const end = mask.lastIndexOf(1) + 1;
    for (let at = 0, next = 0; at < end; hash = nextHash(hash, tokens[at]!), at++) {
      if (at < next) continue;
      const found = this.findRun(row, { at, hash });
      if (found) {
        const { sequenceId } = found.entry;
        if (at > covered) spans.push({ kind: "prompt", sequenceId, offset: covered, length: at - covered });
        spans.push({ kind: "sampled", sequenceId, offset: 0, length: found.length });
        next = at + found.length;
        covered = next;
      } else if (mask[at] === 1) throw notRecorded(row, at);
    }
    return spans;
  }

  /** The sequence that was sampled after the first `at` tokens and agrees with most of what follows. Of equals, the newest. */
  private findRun(row: SampledRow, { at, hash }: { at: number; hash: number }) {
    let best: { readonly entry: Entry; readonly length: number; readonly score: number } | undefined;
    for (const entry of this.byPrompt.get(hash) ?? []) {
      if (entry.temperature !== row.temperature || !isPromptOf(entry, row.tokens, at)) continue;
      const { length, trained, agreeing } = compare(entry, row, at);
      const score = agreeing + trained / (row.tokens.length + 1);
      if (trained > 0 && score >= (best?.score ?? 0)) best = { entry, length, score };
    }
    return best;
  }
}

function bytesOf({ prompt, tokens, logprobs, top }: Entry): number {
  const bytes = prompt.byteLength + tokens.byteLength + logprobs.byteLength;
  return bytes + (top ? top.tokens.byteLength + top.logprobs.byteLength : 0);
}

/** FNV-1a's step, by token. */
function nextHash(hash: number, token: number): number {
  return Math.imul(hash ^ token, 0x01000193) + 0x9e3779b9;
}

function isPromptOf({ prompt }: Entry, tokens: Uint32Array, length: number): boolean {
  return prompt.length === length && prompt.every((token, t) => token === tokens[t]);
}

/** How far a sequence's tokens are those of the row, how many of these are trained, and how many of all have its log-probs. */
function compare({ tokens, logprobs }: Entry, row: SampledRow, at: number) {
  let [length, trained, agreeing] = [0, 0, 0];
  const most = Math.min(tokens.length, row.tokens.length - at);
  for (; length < most && tokens[length] === row.tokens[at + length]; length++) {
    if (row.mask[at + length] !== 1) continue;
    trained++;
    if (!row.logprobs || row.logprobs[at + length] === logprobs[length]) agreeing++;
  }
  return { length, trained, agreeing };
}

function notRecorded({ row, tokens, temperature }: SampledRow, at: number): ConfigError {
  return new ConfigError(
    `Cannot train on row ${row} with stable_reinforce: token ${at} (${tokens[at]}) is trained on, and no record has it as sampled there at temperature ${temperature}. The loss needs samples of this run, in whole rows, with rllm.rollout.train.top_p=1 and top_k=-1, and without a grammar; train rows from elsewhere with importance_sampling.`,
    { path: "rllm.algorithm.loss_fn" },
  );
}
