/** Server-sent events on their way from a worker to a client, each changed as it passes. */

import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import { EventLines, eventIn } from "./event_lines.ts";

export interface EventOptions {
  /** The client went away, or its session ended. */
  readonly signal: AbortSignal;
  /** The event that the client gets. */
  readonly change: (event: JsonBody) => JsonBody;
  /** Called once: after the last event, before the client's stream ends, or when either side breaks off. */
  readonly end: (brokeOff?: "abort" | "error") => Promise<void>;
}

/** Clients raise an error for this event, where a stream that only ends would look like a short reply. */
const BROKEN = `data: ${stringifyJson({
  error: { message: "Cannot finish the reply: the worker broke off.", type: "server_error", param: null, code: null },
})}\n\n`;

/** A stream of changed events. Nothing is held back: each goes out as soon as its line is complete. */
export function forwardedEvents(
  source: ReadableStream<Uint8Array>,
  { change, end, signal }: EventOptions,
): ReadableStream<Uint8Array> {
  const reader = source.getReader();
  const complete = new EventLines();
  const encoder = new TextEncoder();
  let isOver = false;
  const finish = async (brokeOff?: "abort" | "error") => {
    if (isOver) return;
    isOver = true;
    await end(brokeOff);
  };
  return new ReadableStream({
    async pull(controller) {
      try {
        for (let sent = false; !sent; ) {
          const { value, done } = await reader.read();
          const out = complete
            .push(done ? undefined : value)
            .map((line) => changed(line, change))
            .join("");
          if (out !== "") controller.enqueue(encoder.encode(out));
          sent = out !== "" || done;
          if (!done) continue;
          await finish();
          controller.close();
        }
      } catch {
        await finish(signal.aborted ? "abort" : "error");
        controller.enqueue(encoder.encode(BROKEN));
        controller.close();
      }
    },
    async cancel(reason) {
      // First, because the source's end would otherwise look like that of a whole reply.
      await finish("abort");
      await reader.cancel(reason).catch(() => {});
    },
  });
}

/** A line as it goes out, with the empty line that ends an event; empty lines of the source are dropped. */
function changed(line: string, change: EventOptions["change"]): string {
  if (line === "") return "";
  if (!line.startsWith("data:")) return `${line}\n`;
  const event = eventIn(line);
  return `data: ${event ? stringifyJson(change(event)) : line.slice("data:".length).trim()}\n\n`;
}
