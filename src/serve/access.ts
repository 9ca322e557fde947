/** Who may use the server. */
import type { MiddlewareHandler } from "hono";

/** Reached without a key: whether the server is there, and archives, whose addresses are secrets themselves. */
const OPEN = /^\/(api\/v1\/healthz|archives\/)/;

/** Asks for the key in X-API-Key (the SDK's), in Authorization, or for the pages as `?key=`. */
export function bearer(apiKey: string): MiddlewareHandler {
  const expected = digest(apiKey);
  return async (c, next) => {
    if (OPEN.test(c.req.path) || c.req.method === "OPTIONS") return next();
    const given =
      c.req.header("x-api-key") ??
      c.req.header("authorization")?.replace(/^bearer\s+/i, "") ??
      (c.req.path.startsWith("/api/") ? undefined : c.req.query("key"));
    if (given !== undefined && areEqual(await digest(given), await expected)) return next();
    return c.json(
      { detail: "Cannot answer without the right API key: set TINKER_API_KEY to this server's." },
      401,
    );
  };
}

async function digest(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

/** Takes as long whatever the bytes are. */
function areEqual(a: Uint8Array, b: Uint8Array): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) difference |= a[i] ^ b[i];
  return difference === 0;
}
