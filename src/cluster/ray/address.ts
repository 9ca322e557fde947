/** The address of a cluster's dashboard, which serves the Jobs API. */
import { ConfigError } from "../../leaves/errors.ts";

/** Address of Ray's dashboard by default. */
export const DEFAULT_RAY_ADDRESS = "http://127.0.0.1:8265";

/** A base for paths, without a slash at its end. @throws {ConfigError} for what is not `http(s)://host[:port][/path]`. */
export function rayAddress(text: string): string {
  if (/^ray:\/\//i.test(text))
    throw refused(text, "ray:// is the address of Ray's Python client", exampleFor(text.slice("ray://".length)));
  if (text === "auto") throw refused(text, "only a process on the cluster finds it by itself", exampleFor(""));
  if (!/^https?:\/\//i.test(text)) throw refused(text, "it does not begin with http:// or https://", exampleFor(text));
  if (!URL.canParse(text)) throw refused(text, "it is no URL", exampleFor(""));
  const url = new URL(text);
  if (url.username || url.password)
    throw refused(withoutPassword(url), "it holds a password", "Give it as a header of the requests");
  if (url.search || url.hash) throw refused(text, "it ends in a query or a fragment", "Leave that out");
  return url.origin + url.pathname.replace(/\/+$/, "");
}

function refused(text: string, why: string, advice: string): ConfigError {
  return new ConfigError(`Cannot use the Ray address: ${why} (${text}). ${advice}.`);
}

function exampleFor(rest: string): string {
  const host = /^([\w.-]+|\[[\da-f:]+\])(:\d+)?(\/|$)/i.exec(rest)?.[1] ?? "HOST";
  return `Give the address of the cluster's dashboard, usually http://${host}:8265`;
}

function withoutPassword(url: URL): string {
  const shown = new URL(url);
  shown.username = "...";
  shown.password = "";
  return shown.href;
}
