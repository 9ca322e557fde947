/** Responses that later requests continue by their id. */

import type { ChatMessage } from "../../../engine/contract/text.ts";
import { jsonResponse, parseJson, stringifyJson } from "../../../leaves/json.ts";
import { ApiError } from "../../request.ts";

export interface StoredResponse {
  readonly response: object;
  /** The conversation with its reply, without instructions: a later request gives its own. */
  readonly history: readonly ChatMessage[];
}

/** One response as text, so that it holds no more than what is counted. */
interface Kept {
  readonly store: ResponseStore;
  readonly id: string;
  readonly response: string;
  readonly history: string;
  readonly bytes: number;
}

const MOST_RESPONSES = 1000;
const MOST_BYTES = 64 * 2 ** 20;
/** Largest share of the memory for the responses of one store, so that one caller leaves room for others. */
const MOST_SHARE = 1 / 4;
const BYTES_PER_LETTER = 2;
const BYTES_BESIDE = 512;

/** The memory that stores share. The oldest responses of all make room. */
export class ResponseMemory {
  readonly mostBytes: number;
  private readonly kept = new Set<Kept>();
  private held = 0;

  constructor(mostBytes = MOST_BYTES) {
    this.mostBytes = mostBytes;
  }

  /** Approximate bytes that are held now. */
  get bytes(): number {
    return this.held;
  }

  add(kept: Kept): void {
    this.kept.add(kept);
    this.held += kept.bytes;
    for (const oldest of this.kept) {
      if (this.held <= this.mostBytes) return;
      this.remove(oldest);
    }
  }

  remove(kept: Kept): void {
    if (!this.kept.delete(kept)) return;
    this.held -= kept.bytes;
    kept.store.forget(kept);
  }
}

/** Keeps the last responses of one caller; the oldest makes room. */
export class ResponseStore {
  private readonly memory: ResponseMemory;
  private readonly responses = new Map<string, Kept>();
  private held = 0;

  constructor(memory = new ResponseMemory()) {
    this.memory = memory;
  }

  private get mostBytes(): number {
    return MOST_SHARE * this.memory.mostBytes;
  }

  /** Keeps a response, unless it alone is larger than this store's share. */
  put(id: string, stored: StoredResponse): void {
    const [response, history] = [stringifyJson(stored.response), stringifyJson(stored.history)];
    const bytes = BYTES_BESIDE + BYTES_PER_LETTER * (response.length + history.length);
    // One that cannot stay must not make room for itself.
    if (bytes > this.mostBytes) return;
    const kept = { store: this, id, response, history, bytes };
    this.responses.set(id, kept);
    this.held += bytes;
    this.memory.add(kept);
    for (const oldest of this.responses.values()) {
      if (this.responses.size <= MOST_RESPONSES && this.held <= this.mostBytes) return;
      this.memory.remove(oldest);
    }
  }

  /** The memory gave it up. */
  forget({ id, bytes }: Pick<Kept, "id" | "bytes">): void {
    if (this.responses.delete(id)) this.held -= bytes;
  }

  /** Forgets all, because its caller has gone. */
  clear(): void {
    for (const kept of this.responses.values()) this.memory.remove(kept);
  }

  /** @throws {ApiError} for a response that is not kept */
  get(id: string, param?: string): StoredResponse {
    const { response, history } = this.find(id, param);
    return { response: parseJson(response) as object, history: parseJson(history) as ChatMessage[] };
  }

  has(id: string): boolean {
    return this.responses.has(id);
  }

  /** @throws {ApiError} as {@link get} */
  delete(id: string): void {
    this.memory.remove(this.find(id));
  }

  private find(id: string, param?: string): Kept {
    const kept = this.responses.get(id);
    if (kept) return kept;
    throw new ApiError(
      `Cannot find the response ${id.slice(0, 100)}: the last ${MOST_RESPONSES} of this session are kept within limits of memory, unless store=false. Send the conversation as input.`,
      { status: param === undefined ? 404 : 400, code: "previous_response_not_found", param },
    );
  }
}

/** `GET` and `DELETE /v1/responses/{id}`. @throws {ApiError} for a response that is not kept */
export function answerStored(responses: ResponseStore, of: { readonly method: string; readonly id: string }): Response {
  const { id } = of;
  if (of.method !== "DELETE") return jsonResponse(responses.get(id).response);
  responses.delete(id);
  return jsonResponse({ id, object: "response", deleted: true });
}
