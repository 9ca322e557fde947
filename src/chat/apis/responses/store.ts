/** Responses that later requests continue by their id. */
import type { ChatMessage } from "../../../contract/text.ts";
import { ApiError } from "../../request.ts";

export interface StoredResponse {
  readonly response: object;
  /** The conversation with its reply, without instructions: a later request gives its own. */
  readonly history: readonly ChatMessage[];
}

const MOST_RESPONSES = 1000;

/** Keeps the last responses in memory; the oldest makes room. */
export class ResponseStore {
  private readonly responses = new Map<string, StoredResponse>();

  put(id: string, stored: StoredResponse): void {
    this.responses.set(id, stored);
    if (this.responses.size > MOST_RESPONSES) this.responses.delete(this.responses.keys().next().value as string);
  }

  /** @throws {ApiError} for a response that is not kept */
  get(id: string, param?: string): StoredResponse {
    const stored = this.responses.get(id);
    if (stored) return stored;
    throw new ApiError(
      `Cannot find the response ${id}: the last ${MOST_RESPONSES} of this session are kept, unless store=false. Send the conversation as input.`,
      { status: param === undefined ? 404 : 400, code: "previous_response_not_found", param },
    );
  }

  delete(id: string): void {
    this.get(id);
    this.responses.delete(id);
  }
}
