/** The ids of sessions: which texts may be one, and their place in a URL. */
import { Refusal } from "../../leaves/http/refusal.ts";

/** Most letters of an id. */
const MOST_LETTERS = 1024;

/** Control characters and line ends would forge lines of a log; halves of a character are stored as one and the same. */
const UNPRINTABLE = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]/u;

/** Clients and proxies resolve these parts of a path, so that the call would reach another route. */
const DOTS = /(^|\/)\.{1,2}(\/|$)/;

/** @throws {Refusal} 400 for a text that is no id */
export function checkedId(id: string): string {
  const fault = faultOf(id);
  if (fault === undefined) return id;
  throw new Refusal(400, `Cannot use the session id ${JSON.stringify(id.slice(0, 100))}: ${fault}. Choose another.`);
}

function faultOf(id: string): string | undefined {
  if (id === "") return "it is empty";
  if (id.length > MOST_LETTERS) return `it has ${id.length} letters, more than ${MOST_LETTERS}`;
  if (UNPRINTABLE.test(id)) return "it has a control character";
  return DOTS.test(id) ? "a part between slashes is . or .." : undefined;
}

/** An id in a URL. @throws {Refusal} 400 for a broken encoding, and as {@link checkedId} */
export function idInUrl(raw: string): string {
  let id: string;
  try {
    id = decodeURIComponent(raw);
  } catch {
    throw new Refusal(400, "Cannot read the session id in the URL: its encoding is broken. Encode it as UTF-8.");
  }
  return checkedId(id);
}

/** `/sessions/{id}`. Slashes stay, unless a part is `v1`: the shortest part before `/v1` is the id. */
export function pathOf(id: string): string {
  const parts = id.split("/");
  const isPlain = !parts.includes("v1");
  return `/sessions/${isPlain ? parts.map(encodeURIComponent).join("/") : encodeURIComponent(id)}`;
}
