/**
 * Which pages may use a server. A browser runs every site's scripts beside a server on this machine, so that "only
 * loopback" keeps nobody out: the Host that a request names and the Origin that it comes from do.
 */
import { ConfigError } from "../errors.ts";
import { Refusal } from "./refusal.ts";

export interface SiteRules {
  /** Address that the server listens on. Loopback: only loopback's names are answered. */
  readonly host: string;
  /** Further names (without a port) that the server is reached by. */
  readonly names: readonly string[];
  /** Origins of pages that may call: `https://app.example`. */
  readonly origins: readonly string[];
}

const HOST = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?$/i;
const LOOPBACK = /^(localhost|[a-z0-9-]+\.localhost|127(\.\d{1,3}){3}|\[::1\]|\[::ffff:127(\.\d{1,3}){3}\])$/;
const ADDRESS = /^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]+\])$/;

/** True for the addresses that only this machine reaches. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase();
  return LOOPBACK.test(name.includes(":") && !name.startsWith("[") ? `[${name}]` : name);
}

/** The Host that a request names, with its port, lower case. Requests that never had a socket name it in the address. */
export function hostOf(request: Request): string {
  return (request.headers.get("host") ?? new URL(request.url).host).toLowerCase();
}

/**
 * Refuses a Host that is not this server's: another site's name may be made to point here (DNS rebinding). An address
 * in numbers is nobody's name. @throws Refusal 403
 */
export function checkHost(request: Request, rules: SiteRules): void {
  const host = hostOf(request);
  const name = HOST.exec(host)?.[1];
  if (name !== undefined && isOurName(name, rules)) return;
  throw new Refusal(
    403,
    `Cannot answer for the host ${JSON.stringify(host.slice(0, 100))}: it is not a name of this server. Start it with --allow-host to add one.`,
  );
}

function isOurName(name: string, { host, names }: SiteRules): boolean {
  if (LOOPBACK.test(name) || names.includes(name)) return true;
  return !isLoopback(host) && (ADDRESS.test(name) || name === host.toLowerCase());
}

/**
 * Refuses pages of other sites. Browsers send Origin with whatever may change something, and Sec-Fetch-Site with all
 * else; links that a person follows are let through. @returns the page's origin where it was allowed by name.
 * @throws Refusal 403
 */
export function checkOrigin(request: Request, rules: SiteRules): string | undefined {
  const { headers } = request;
  const origin = headers.get("origin");
  if (origin !== null && rules.origins.includes(origin)) return origin;
  const site = headers.get("sec-fetch-site");
  const isFollowed = headers.get("sec-fetch-mode") === "navigate" && request.method === "GET";
  const isOther =
    origin === null
      ? (site === "cross-site" || site === "same-site") && !isFollowed
      : !isOwn(origin, request);
  if (!isOther) return undefined;
  throw new Refusal(
    403,
    `Cannot answer a page of ${JSON.stringify((origin ?? "another site").slice(0, 100))}: start the server with --cors ORIGIN to let it in.`,
  );
}

/** A page that this server sent. Whoever ends TLS in front of it keeps the name. */
function isOwn(origin: string, request: Request): boolean {
  return /^https?:\/\/(.*)$/.exec(origin.toLowerCase())?.[1] === hostOf(request);
}

/** True for a name that a Host header may hold, without a port. */
export function isHostName(name: string): boolean {
  return HOST.exec(name)?.[1] === name;
}

/** @throws {ConfigError} for what is no origin of a page: `https://app.example`, without a path. */
export function checkOriginName(origin: string): string {
  if (URL.canParse(origin) && new URL(origin).origin === origin && /^https?:/.test(origin)) return origin;
  throw new ConfigError(
    `Cannot allow the origin ${JSON.stringify(origin)}: write it as https://app.example, without a path.`,
  );
}
