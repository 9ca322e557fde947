/** A proxy that fails as networks and busy servers do, at chosen requests. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** What happens to a request: it fails before or after the service answered it. */
export type Fault = "broken" | "failed" | "busy" | "lost" | "late";

export interface FlakyProxy {
  readonly url: string;
  /** Faults that happened, in order. */
  readonly faults: readonly Fault[];
  readonly requests: number;
  close(): Promise<void>;
}

/** Faults by the number of the request, from 0; `late` holds the answer back for `lateMs`. */
export async function flakyProxy(
  target: string,
  faults: Readonly<Record<number, Fault>>,
  lateMs: number,
): Promise<FlakyProxy> {
  const happened: Fault[] = [];
  let requests = 0;
  const server = createServer(async (request, response) => {
    const fault = faults[requests++];
    if (fault) happened.push(fault);
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    await answer({ request, response, body: Buffer.concat(chunks) }, { target, fault, lateMs }).catch(() =>
      response.destroy(),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    faults: happened,
    get requests() {
      return requests;
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly body: Buffer;
}

interface Way {
  readonly target: string;
  readonly fault: Fault | undefined;
  readonly lateMs: number;
}

async function answer({ request, response, body }: Exchange, { target, fault, lateMs }: Way): Promise<void> {
  if (fault === "broken") return void response.destroy();
  if (fault === "failed") return void response.writeHead(502).end("bad gateway");
  if (fault === "busy") return void response.writeHead(503, { "Retry-After": "0" }).end("later");
  const { authorization = "", "content-type": type = "application/json" } = request.headers;
  const forwarded = await fetch(`${target}${request.url}`, {
    method: request.method ?? "GET",
    headers: { authorization, "content-type": type },
    ...(body.length > 0 && { body }),
  });
  const text = await forwarded.text();
  if (fault === "lost") return void response.destroy();
  if (fault === "late") await new Promise((resolve) => setTimeout(resolve, lateMs));
  response.writeHead(forwarded.status, { "content-type": "application/json" }).end(text);
}
