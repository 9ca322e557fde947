/**
 * What the server keeps of sampled sequences for `stable_reinforce`: at each sampled token the sampler's most likely ones. In memory, for
 * a day after the last use, until the session ends, or until their room is needed.
 */
import type { SampledSequence } from "../../contract/backend.ts";
import { RECORDED_TOP } from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";

const DAY_MS = 24 * 3_600_000;
/** Sequences that are gone, of which the reason is still known. */
const MOST_GONE = 16_384;

export interface RecordedSequence {
  readonly prompt: Uint32Array;
  /** The sampled tokens, [n]. */
  readonly tokens: Uint32Array;
  /** Most likely tokens at each, the same number everywhere. */
  readonly k: number;
  /** [n, k] row-major, best first. */
  readonly top: { readonly tokens: Uint32Array; readonly logprobs: Float32Array };
}

/** What was sampled for one request. */
export interface SampledRequest {
  readonly session: string;
  readonly sequenceIds: readonly string[];
  readonly prompt: readonly number[];
  readonly sequences: readonly SampledSequence[];
  /** 0: the most likely token was taken. */
  readonly temperature: number;
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

/** The sequences of a session, in the order of their last use. */
interface OfSession {
  readonly byId: Map<string, Entry>;
  bytes: number;
}

export class RecordedSequences {
  private readonly budgetBytes: number;
  private readonly now: () => number;
  private readonly sessions = new Map<string, OfSession>();
  /** Why sequences are gone, by id. */
  private readonly gone = new Map<string, string>();

  constructor({ budgetBytes, now = Date.now }: RecordedSequencesOptions) {
    this.budgetBytes = budgetBytes;
    this.now = now;
  }

  get size(): number {
    return [...this.sessions.values()].reduce((sum, { byId }) => sum + byId.size, 0);
  }

  get bytes(): number {
    return [...this.sessions.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Keeps the sequences of a request. Where room is needed, the session with the most loses those used longest ago. */
  add({ session, sequenceIds, prompt, sequences, temperature }: SampledRequest): void {
    const of = this.sessions.get(session) ?? { byId: new Map(), bytes: 0 };
    this.sessions.set(session, of);
    const shared = Uint32Array.from(prompt);
    for (const [i, sequence] of sequences.entries()) {
      const tokens = Uint32Array.from(sequence.tokens);
      const { k, top } = temperature === 0 ? pointMasses(tokens) : topOf(sequence);
      const own = tokens.byteLength + top.tokens.byteLength + top.logprobs.byteLength;
      const bytes = own + Math.ceil(shared.byteLength / sequences.length);
      of.byId.set(sequenceIds[i]!, { prompt: shared, tokens, k, top, bytes, used: this.now() });
      of.bytes += bytes;
    }
    this.makeRoom();
  }

  /** A sequence of a session, which this counts as used now. @throws ConfigError for one that the session does not have, with the reason */
  use(id: string, session: string): RecordedSequence {
    this.dropExpired();
    const byId = this.sessions.get(session)?.byId;
    const entry = byId?.get(id);
    if (byId && entry) {
      entry.used = this.now();
      byId.delete(id);
      byId.set(id, entry);
      return entry;
    }
    const isForeign = [...this.sessions.values()].some((of) => of.byId.has(id));
    const reason = isForeign ? "another session sampled it" : (this.gone.get(id) ?? UNKNOWN);
    throw new ConfigError(
      `the sequence ${JSON.stringify(id.slice(0, 100))} is not recorded for this session: ${reason}. Sample it again here with record_stability_info=True.`,
    );
  }

  dropSession(session: string): void {
    for (const id of this.sessions.get(session)?.byId.keys() ?? []) this.note(id, "its session has ended");
    this.sessions.delete(session);
  }

  /** Drops what nobody used for a day. */
  dropExpired(): void {
    const oldest = this.now() - DAY_MS;
    for (const of of this.sessions.values())
      for (const [id, { used }] of of.byId) {
        if (used > oldest) break;
        this.drop(of, id, "it was sampled and last trained on more than a day ago");
      }
  }

  private makeRoom(): void {
    for (let bytes = this.bytes; bytes > this.budgetBytes; bytes = this.bytes) {
      const largest = [...this.sessions.values()].reduce((a, b) => (b.bytes > a.bytes ? b : a));
      const [oldest] = largest.byId.keys();
      const mib = Math.round(this.budgetBytes / 2 ** 20);
      this.drop(largest, oldest!, `newer sequences took its room (the server keeps ${mib} MiB of them)`);
    }
  }

  private drop(of: OfSession, id: string, reason: string): void {
    of.bytes -= of.byId.get(id)!.bytes;
    of.byId.delete(id);
    this.note(id, reason);
  }

  private note(id: string, reason: string): void {
    this.gone.set(id, reason);
    const [first] = this.gone.keys();
    if (this.gone.size > MOST_GONE) this.gone.delete(first!);
  }
}

const UNKNOWN =
  "no request of this server sampled it with record_stability_info, and what another server recorded stays there";

/** Greedy sampling draws from a distribution with one token. */
function pointMasses(tokens: Uint32Array): Pick<RecordedSequence, "k" | "top"> {
  return { k: 1, top: { tokens, logprobs: new Float32Array(tokens.length) } };
}

function topOf({ tokens, top_logprobs: top }: SampledSequence): Pick<RecordedSequence, "k" | "top"> {
  if (top?.length !== tokens.length) throw new Error("Cannot record a sequence: it has no most likely tokens.");
  const rows = top.map((row) => row.slice(0, RECORDED_TOP));
  const all = rows.flat();
  return {
    k: rows[0]?.length ?? 0,
    top: {
      tokens: Uint32Array.from(all, ({ token }) => token),
      logprobs: Float32Array.from(all, ({ logprob }) => logprob),
    },
  };
}
