/**
 * The server's records of sampled sequences for `stable_reinforce`: at each sampled token the sampler's most likely
 * ones. In memory, for a day after the last use, until the session that may train on them ends, or until their room is
 * needed.
 */
import type { SampledSequence } from "../../../engine/contract/backend.ts";
import { RECORDED_TOP } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";

const DAY_MS = 24 * 3_600_000;
/** Sequences that are gone, of which the reason is still known. */
const MOST_GONE = 16_384;
/** Memory of a sequence besides its arrays. */
const ENTRY_BYTES = 256;

export interface RecordedSequence {
  readonly prompt: Uint32Array;
  /** The sampled tokens, [n]. */
  readonly tokens: Uint32Array;
  /** Most likely tokens at each, the same number everywhere. */
  readonly k: number;
  /** [n, k] row-major, best first. */
  readonly top: { readonly tokens: Uint32Array; readonly logprobs: Float32Array };
}

/** Sequences sampled for one request. */
export interface SampledRequest {
  readonly sequenceIds: readonly string[];
  readonly prompt: readonly number[];
  readonly sequences: readonly SampledSequence[];
  /** 0: the most likely token was taken. */
  readonly temperature: number;
}

export interface NamedSequence extends RecordedSequence {
  readonly id: string;
}

/** Owner of kept sequences. */
export interface KeptFor {
  /** The session that may train on them. */
  readonly session: string;
  /** The session that sampled them on another server. Absent: `session`, here. */
  readonly from?: string | undefined;
}

export interface RecordedSequencesOptions {
  /** Memory that all of them may take. */
  readonly budgetBytes: number;
  readonly now?: () => number;
}

interface Entry extends RecordedSequence {
  readonly bytes: number;
  used: number;
}

/** Sequences that one session sampled for a session that trains, in the order of its last use. */
interface OfSampler {
  readonly session: string;
  readonly byId: Map<string, Entry>;
  bytes: number;
}

export class RecordedSequences {
  private readonly budgetBytes: number;
  private readonly now: () => number;
  /** Samplers by the two sessions, so that each sampler has a share of the room. */
  private readonly samplers = new Map<string, OfSampler>();
  /** Reasons why sequences are gone, by id. */
  private readonly gone = new Map<string, string>();

  constructor({ budgetBytes, now = Date.now }: RecordedSequencesOptions) {
    this.budgetBytes = budgetBytes;
    this.now = now;
  }

  get size(): number {
    return [...this.samplers.values()].reduce((sum, { byId }) => sum + byId.size, 0);
  }

  get bytes(): number {
    return [...this.samplers.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /**
   * Keeps sequences; one that is kept already stays as it is. Where room is needed, the session that sampled the most loses those used
   * longest ago.
   * @throws ConfigError for an id under which another sequence is kept
   */
  keep(sequences: readonly NamedSequence[], { session, from }: KeptFor): void {
    const key = from === undefined ? session : `${session} from ${from}`;
    const of = this.samplers.get(key) ?? { session, byId: new Map(), bytes: 0 };
    this.samplers.set(key, of);
    for (const { id, ...sequence } of sequences) {
      const record = of.byId.get(id);
      if (record && isSame(record, sequence)) continue;
      if (record)
        throw new ConfigError(`another sequence is recorded under the id ${JSON.stringify(id.slice(0, 100))}`);
      const { prompt, tokens, top } = sequence;
      const dataBytes = tokens.byteLength + top.tokens.byteLength + top.logprobs.byteLength;
      const bytes = ENTRY_BYTES + dataBytes + Math.ceil(prompt.byteLength / sequences.length);
      of.byId.set(id, { ...sequence, bytes, used: this.now() });
      of.bytes += bytes;
    }
    this.makeRoom();
  }

  /** A sequence that a session may train on, which this counts as used now. @throws ConfigError for another one, with the reason */
  use(id: string, session: string): RecordedSequence {
    this.dropExpired();
    const holders = [...this.samplers.values()].filter(({ byId }) => byId.has(id));
    const byId = holders.find((of) => of.session === session)?.byId;
    const entry = byId?.get(id);
    if (byId && entry) {
      entry.used = this.now();
      byId.delete(id);
      byId.set(id, entry);
      return entry;
    }
    const reason = holders.length > 0 ? "another session sampled it" : (this.gone.get(id) ?? UNKNOWN);
    throw new ConfigError(
      `the sequence ${JSON.stringify(id.slice(0, 100))} is not recorded for this session: ${reason}. Sample it again here with record_stability_info=True.`,
    );
  }

  dropSession(session: string): void {
    for (const [key, of] of this.samplers) {
      if (of.session !== session) continue;
      for (const id of of.byId.keys()) this.note(id, "its session has ended");
      this.samplers.delete(key);
    }
  }

  /** Drops what nobody used for a day. */
  dropExpired(): void {
    const oldest = this.now() - DAY_MS;
    for (const [key, of] of this.samplers)
      for (const [id, { used }] of of.byId) {
        if (used > oldest) break;
        this.drop(key, id, "it was sampled and last trained on more than a day ago");
      }
  }

  private makeRoom(): void {
    for (let bytes = this.bytes; bytes > this.budgetBytes; bytes = this.bytes) {
      const [key, largest] = [...this.samplers].reduce((a, b) => (b[1].bytes > a[1].bytes ? b : a));
      const [oldest] = largest.byId.keys();
      const mib = Math.round(this.budgetBytes / 2 ** 20);
      this.drop(key, oldest!, `newer sequences took its room (the server keeps ${mib} MiB of them)`);
    }
  }

  private drop(key: string, id: string, reason: string): void {
    const of = this.samplers.get(key)!;
    of.bytes -= of.byId.get(id)!.bytes;
    of.byId.delete(id);
    if (of.byId.size === 0) this.samplers.delete(key);
    this.note(id, reason);
  }

  private note(id: string, reason: string): void {
    this.gone.set(id, reason);
    const [first] = this.gone.keys();
    if (this.gone.size > MOST_GONE) this.gone.delete(first!);
  }
}

const UNKNOWN =
  "no request of this server sampled it with record_stability_info, and no server that copies weights from here handed it on";

function isSame(a: RecordedSequence, b: RecordedSequence): boolean {
  const of = ({ prompt, tokens, k, top }: RecordedSequence) => [prompt, tokens, [k], top.tokens, top.logprobs];
  const others = of(b);
  return of(a).every(
    (values, i) => values.length === others[i]!.length && values.every((value, j) => value === others[i]![j]),
  );
}

/** Returns the kept records of a request's samples. The records share its prompt. */
export function recordedOf({ sequenceIds, prompt, sequences, temperature }: SampledRequest): NamedSequence[] {
  const shared = Uint32Array.from(prompt);
  return sequences.map((sequence, i) => {
    const tokens = Uint32Array.from(sequence.tokens);
    const { k, top } = temperature === 0 ? pointMasses(tokens) : topOf(sequence);
    return { id: sequenceIds[i]!, prompt: shared, tokens, k, top };
  });
}

/** Greedy sampling draws from a distribution with one token. */
function pointMasses(tokens: Uint32Array): Pick<RecordedSequence, "k" | "top"> {
  return { k: 1, top: { tokens, logprobs: new Float32Array(tokens.length) } };
}

function topOf({ tokens, top_logprobs: top }: SampledSequence): Pick<RecordedSequence, "k" | "top"> {
  if (top?.length !== tokens.length) throw new Error("Cannot record a sequence: it has no most likely tokens.");
  const rows = top.map((row) => row.slice(0, RECORDED_TOP));
  const cells = rows.flat();
  return {
    k: rows[0]?.length ?? 0,
    top: {
      tokens: Uint32Array.from(cells, ({ token }) => token),
      logprobs: Float32Array.from(cells, ({ logprob }) => logprob),
    },
  };
}
