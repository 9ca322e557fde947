/** The lines of server-sent events, whatever pieces they arrive in. */

import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { parseJson } from "../../../leaves/json.ts";

/** An event may hold the tokens of a prompt. */
const MOST_LINE_LETTERS = 2 ** 24;

export class EventLines {
  private readonly decoder = new TextDecoder();
  private rest = "";

  /** The lines that are complete now. @param piece undefined at the end of the stream */
  push(piece: Uint8Array | undefined): string[] {
    const text = piece === undefined ? this.decoder.decode() : this.decoder.decode(piece, { stream: true });
    const lines = (this.rest + text).split(/\r?\n/);
    this.rest = piece === undefined ? "" : lines.pop()!;
    if (this.rest.length > MOST_LINE_LETTERS)
      throw new Error(`Cannot read the events of the worker: a line has more than ${MOST_LINE_LETTERS} letters.`);
    return lines;
  }
}

/** The object of a `data:` line. Undefined for `[DONE]`, and for what is no object. */
export function eventIn(line: string): JsonBody | undefined {
  if (!line.startsWith("data:")) return undefined;
  try {
    const value: unknown = parseJson(line.slice("data:".length));
    return typeof value === "object" && value !== null ? (value as JsonBody) : undefined;
  } catch {
    return undefined;
  }
}

/** The events of a stream. One that is not read to its end is cancelled. */
export async function* eventsIn(source: ReadableStream<Uint8Array>): AsyncGenerator<JsonBody> {
  const reader = source.getReader();
  const lines = new EventLines();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      for (const line of lines.push(done ? undefined : value)) {
        const event = eventIn(line);
        if (event) yield event;
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
