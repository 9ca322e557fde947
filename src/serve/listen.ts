/** The server's socket, in Node and in Deno. */
import type { AddressInfo } from "node:net";
import { serve } from "@hono/node-server";
import { ConfigError } from "../errors.ts";
import type { App } from "./app.ts";

export interface Listening {
  /** `http://127.0.0.1:8000`. */
  readonly url: string;
  /** Closes the socket and what hangs on it. */
  close(): Promise<void>;
}

/** @param options.port 0 takes any free one. @throws ConfigError for a port that is taken. */
export function listen(app: App, options: { host: string; port: number }): Promise<Listening> {
  const { host, port } = options;
  return new Promise((resolve, reject) => {
    const server = serve(
      { fetch: (request) => app.fetch(request), hostname: host, port },
      (info: AddressInfo) => {
        const name = info.family === "IPv6" ? `[${info.address}]` : info.address;
        resolve({ url: `http://${name}:${info.port}`, close: () => closed(server) });
      },
    );
    server.on("error", (cause: NodeJS.ErrnoException) => reject(explain(cause, options)));
  });
}

function closed(server: ReturnType<typeof serve>): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
    if ("closeAllConnections" in server) server.closeAllConnections();
  });
}

function explain(cause: NodeJS.ErrnoException, { host, port }: { host: string; port: number }): Error {
  if (cause.code === "EADDRINUSE")
    return new ConfigError(
      `Cannot listen on ${host}:${port} as another program does: choose another --port.`,
    );
  if (cause.code === "EADDRNOTAVAIL" || cause.code === "ENOTFOUND")
    return new ConfigError(
      `Cannot listen on ${host} as this machine has no such address: choose another --host.`,
    );
  if (cause.code === "EACCES")
    return new ConfigError(`Cannot listen on port ${port} as this user may not: choose one from 1024 on.`);
  return cause;
}
