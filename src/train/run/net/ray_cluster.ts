/** Opens the client of a Ray cluster: address and token from settings, options and the environment that Ray's own tools read. */
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { DEFAULT_RAY_ADDRESS } from "../../../cluster/ray/address.ts";
import { RayJobs } from "../../../cluster/ray/jobs.ts";
import { fileError } from "../../../leaves/errors.ts";
import type { RunIo } from "../io.ts";
import { httpFetch } from "./http.ts";
import { readWebSocket } from "./websocket.ts";

export interface RayClusterOptions {
  /** Default: `$RAY_API_SERVER_ADDRESS`, `$RAY_ADDRESS`, then this machine. */
  readonly address?: string | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly patienceMs?: number | undefined;
}

/** @throws {ConfigError} for an address that is no dashboard's, and for a token file that cannot be read. */
export function openRay(io: RunIo, { address, headers, patienceMs }: RayClusterOptions = {}): RayJobs {
  const { RAY_API_SERVER_ADDRESS, RAY_ADDRESS } = io.env;
  return new RayJobs({
    address: address || RAY_API_SERVER_ADDRESS || RAY_ADDRESS || DEFAULT_RAY_ADDRESS,
    token: tokenOf(io),
    headers,
    patienceMs,
    clock: io.clock,
    request: httpFetch,
    tail: readWebSocket,
    notify: (message) => io.err(`ray: ${message}\n`),
  });
}

/** Path where Ray's own client finds the token: the file at home counts only where token authentication is asked for. */
function tokenOf({ env }: RunIo): string | undefined {
  if (env.RAY_AUTH_TOKEN) return env.RAY_AUTH_TOKEN.trim();
  const atHome = env.RAY_AUTH_MODE === "token" ? join(env.HOME || homedir(), ".ray", "auth_token") : undefined;
  const file = env.RAY_AUTH_TOKEN_PATH || atHome;
  if (file === undefined) return undefined;
  try {
    return readFileSync(file, "utf8").trim() || undefined;
  } catch (cause) {
    throw fileError(cause, { act: "read the token of the Ray cluster", file }) ?? cause;
  }
}
