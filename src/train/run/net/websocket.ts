/** Reads a WebSocket to its end, with headers that a browser's could not send. */
import { WebSocket } from "ws";
import type { TailEnd, TailRequest } from "../../../cluster/ray/contract.ts";

/** How long a server may take to accept the connection, ms. */
const CONNECT_MS = 30_000;
/** A connection over which nothing came for this long is asked for a sign of life; after twice this long it is given up, ms. */
const SILENT_MS = 30_000;
/** The server sends a line in one message, and has a limit of 4 MiB of its own. */
const LARGEST_MESSAGE = 16 * 2 ** 20;
const OPTIONS = {
  handshakeTimeout: CONNECT_MS,
  maxPayload: LARGEST_MESSAGE,
  // Ray's dashboard hands an offer to compress to the process behind it and then breaks off at the first message (2.60).
  perMessageDeflate: false,
} as const;

/** @param options.silentMs other than {@link SILENT_MS} */
export function readWebSocket(
  url: string,
  { headers, onText, signal }: TailRequest,
  { silentMs = SILENT_MS }: { silentMs?: number } = {},
): Promise<TailEnd> {
  if (signal.aborted) return Promise.resolve({ code: 1000, reason: "aborted" });
  return new Promise((resolve) => {
    const socket = new WebSocket(url, { ...OPTIONS, headers });
    let reason = "";
    let status: number | undefined;
    let latest = Date.now();
    const heard = () => {
      latest = Date.now();
    };
    const beat = setInterval(() => {
      if (Date.now() - latest < silentMs) return;
      if (Date.now() - latest < 2 * silentMs) return socket.ping();
      reason = `nothing was heard for ${(2 * silentMs) / 1000} s`;
      socket.terminate();
    }, silentMs / 2);
    const stop = () => socket.terminate();
    signal.addEventListener("abort", stop, { once: true });
    socket.on("pong", heard);
    socket.on("message", (data, isBinary) => {
      heard();
      if (!isBinary) onText(String(data));
    });
    socket.on("unexpected-response", (request, response) => {
      status = response.statusCode;
      reason = `it answered ${status}`;
      request.destroy();
      // After this event the socket reports nothing by itself.
      socket.terminate();
    });
    socket.on("error", (error) => {
      reason ||= error.message;
    });
    socket.on("close", (code, said) => {
      clearInterval(beat);
      signal.removeEventListener("abort", stop);
      resolve({ code, reason: reason || String(said), ...(status !== undefined && { status }) });
    });
  });
}
