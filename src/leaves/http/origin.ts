/**
 * Checks which pages may use a server. A browser runs every site's scripts on the machine of the server, so that
 * listening on loopback alone protects nothing: the checks of a request's Host and Origin do.
 */
import { ConfigError } from "../errors.ts";
import { Refusal } from "./refusal.ts";

export interface SiteRules {
  /** Address that the server listens on. On loopback, only loopback names are answered. */
  readonly host: string;
  /**
   * Additional names of the server, without a port; `any` where every route needs a key, which a page of another site does
   * not have.
   */
  readonly names: readonly string[] | "any";
  /** Origins of pages that may call it: `https://app.example`. */
  readonly origins: readonly string[];
}

const HOST = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?$/i;
const LOOPBACK = /^(localhost|[a-z0-9-]+\.localhost|127(\.\d{1,3}){3}|\[::1\]|\[::ffff:127(\.\d{1,3}){3}\])$/;
const ADDRESS = /^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]+\])$/;

/** True for addresses that only this machine can reach. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase();
  return LOOPBACK.test(name.includes(":") && !name.startsWith("[") ? `[${name}]` : name);
}

/** A request's Host with its port, in lower case. A request that did not come over a socket has it in its URL. */
export function hostOf(request: Request): string {
  return (request.headers.get("host") ?? new URL(request.url).host).toLowerCase();
}

/**
 * Refuses a Host that is not this server's, because another site's name can be made to resolve to it (DNS rebinding).
 * Numeric addresses are safe: no site owns them. @throws Refusal 403
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
  if (names === "any" || LOOPBACK.test(name) || names.includes(name)) return true;
  return !isLoopback(host) && (ADDRESS.test(name) || name === host.toLowerCase());
}

/**
 * Refuses pages of other sites. Browsers send Origin with requests that may change state, and Sec-Fetch-Site with all
 * others; links that a person follows are allowed. @returns the page's origin if `origins` lists it.
 * @throws Refusal 403
 */
export function checkOrigin(request: Request, rules: SiteRules): string | undefined {
  const { headers } = request;
  const origin = headers.get("origin");
  if (origin !== null && rules.origins.includes(origin)) return origin;
  const site = headers.get("sec-fetch-site");
  const isFollowed = headers.get("sec-fetch-mode") === "navigate" && request.method === "GET";
  const isOther =
    origin === null ? (site === "cross-site" || site === "same-site") && !isFollowed : !isOwn(origin, request);
  if (!isOther) return undefined;
  throw new Refusal(
    403,
    `Cannot answer a page of ${JSON.stringify((origin ?? "another site").slice(0, 100))}: the page is of another site. Start the server with --cors ORIGIN to allow it.`,
  );
}

/** True for a request of another site's page, one that `origins` lists included. */
export function isForeignPage(request: Request): boolean {
  const origin = request.headers.get("origin");
  return origin !== null && !isOwn(origin, request);
}

/** True for a page of this server. A proxy that ends TLS in front of it keeps the host, so only the scheme may differ. */
function isOwn(origin: string, request: Request): boolean {
  return /^https?:\/\/(.*)$/.exec(origin.toLowerCase())?.[1] === hostOf(request);
}

/** True for a name that a Host header may hold, without a port. */
export function isHostName(name: string): boolean {
  return HOST.exec(name)?.[1] === name;
}

/** @throws {ConfigError} unless it is an origin: `https://app.example`, without a path */
export function checkOriginName(origin: string): string {
  if (URL.canParse(origin) && new URL(origin).origin === origin && /^https?:/.test(origin)) return origin;
  throw new ConfigError(
    `Cannot allow the origin ${JSON.stringify(origin)}: it is not an origin. Write it as https://app.example, without a path.`,
  );
}
