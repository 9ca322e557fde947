/** A store that keeps no traces, for a gateway that only serves. */

import type { SessionRecord, TraceRecord } from "../../engine/contract/trace.ts";
import { stringifyJson } from "../../leaves/json.ts";
import { MemoryTraceStore } from "./memory.ts";

/** Letters of all sessions as JSON. */
const MOST_LETTERS = 32 * 2 ** 20;

/**
 * Forgets traces and most sessions at once. As long as there is room, sessions that have ended stay so, and those with keys
 * of their own stay closed to others. The one whose record was written longest ago goes first.
 */
export class UnrecordedStore extends MemoryTraceStore {
  readonly #letters = new Map<string, number>();
  readonly #most: number;
  #all = 0;

  constructor({ most = MOST_LETTERS }: { readonly most?: number } = {}) {
    super();
    this.#most = most;
  }

  override async putTrace(_: TraceRecord): Promise<void> {}

  override async putSession(session: SessionRecord): Promise<void> {
    const id = session.session_id;
    if (session.key_digest === undefined && !session.outcome) return void (await this.deleteSessions([id]));
    this.#forget(id);
    const letters = stringifyJson(session).length;
    this.#letters.set(id, letters);
    this.#all += letters;
    await super.putSession(session);
    const oldest: string[] = [];
    for (const other of this.#letters.keys()) {
      if (this.#all <= this.#most || other === id) break;
      this.#forget(other);
      oldest.push(other);
    }
    await super.deleteSessions(oldest);
  }

  override async deleteSessions(ids: readonly string[]): Promise<number> {
    for (const id of ids) this.#forget(id);
    return super.deleteSessions(ids);
  }

  #forget(id: string): void {
    this.#all -= this.#letters.get(id) ?? 0;
    this.#letters.delete(id);
  }
}
