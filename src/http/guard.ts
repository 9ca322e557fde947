/** What stands in front of every server's routes: who may ask, from which page, and what no answer goes without. */
import { isSameKey, keyIn } from "./key.ts";
import { checkHost, checkOrigin, type SiteRules } from "./origin.ts";
import { Refusal, refused } from "./refusal.ts";

export type Handler = (request: Request) => Response | Promise<Response>;

export interface GuardOptions {
  readonly site: SiteRules;
  /** What clients must send; absent: nothing is asked. */
  readonly apiKey?: string | undefined;
  /** Paths that need no key. */
  readonly open?: RegExp;
  /** Paths whose key may stand in the address, for people's browsers. */
  readonly queryKey?: RegExp;
  /** What allowed pages may send. */
  readonly methods: readonly string[];
  readonly headers: readonly string[];
  /** Counts what never reached a route. */
  readonly onRefused?: (status: number) => void;
}

/** Preflights are kept by browsers for this long, seconds. */
const PREFLIGHT_SECONDS = "600";

/** A handler that answers only whom it should, and never with a stack. Does not throw. */
export function guarded(handler: Handler, options: GuardOptions): (request: Request) => Promise<Response> {
  return async (request) => {
    let page: string | undefined;
    try {
      checkHost(request, options.site);
      page = checkOrigin(request, options.site);
      if (page !== undefined && request.method === "OPTIONS") return finished(preflight(options), page);
      await checkKey(request, options);
    } catch (error) {
      const refusal = error instanceof Refusal ? error : new Refusal(400, "Cannot read the request.");
      options.onRefused?.(refusal.status);
      return finished(refused(refusal), page);
    }
    try {
      return finished(await handler(request), page);
    } catch (error) {
      const refusal =
        error instanceof Refusal ? error : new Refusal(500, "Cannot answer: the server failed.");
      return finished(refused(refusal), page);
    }
  };
}

async function checkKey(request: Request, { apiKey, open, queryKey }: GuardOptions): Promise<void> {
  if (apiKey === undefined) return;
  const path = new URL(request.url).pathname;
  if (open?.test(path)) return;
  const given = keyIn(request, { allowsQuery: queryKey?.test(path) ?? false });
  if (given !== undefined && (await isSameKey(given, apiKey))) return;
  throw new Refusal(401, "Cannot answer without the right API key: set TINKER_API_KEY to this server's.");
}

function preflight({ methods, headers }: GuardOptions): Response {
  return new Response(null, {
    status: 204,
    headers: {
      "Access-Control-Allow-Methods": methods.join(", "),
      "Access-Control-Allow-Headers": headers.join(", "),
      "Access-Control-Max-Age": PREFLIGHT_SECONDS,
      // Chrome asks before a page from elsewhere may reach this machine.
      "Access-Control-Allow-Private-Network": "true",
    },
  });
}

/** Answers that are no page may do nothing in a browser, nor be shown in another site's frame. */
const NO_PAGE = "default-src 'none'; frame-ancestors 'none'";

/** Only what carries the nonce runs, and only this server is talked to. */
export function pagePolicy(nonce: string): string {
  return `default-src 'none'; script-src 'nonce-${nonce}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;
}

function finished(response: Response, page: string | undefined): Response {
  const { headers } = response;
  const put = (name: string, value: string) => {
    if (!headers.has(name)) headers.set(name, value);
  };
  put("Content-Security-Policy", NO_PAGE);
  put("Cache-Control", "no-store");
  headers.set("X-Content-Type-Options", "nosniff");
  headers.set("Referrer-Policy", "no-referrer");
  headers.set("X-Frame-Options", "DENY");
  headers.set("Cross-Origin-Resource-Policy", page === undefined ? "same-origin" : "cross-origin");
  headers.append("Vary", "Origin");
  if (page !== undefined) {
    headers.set("Access-Control-Allow-Origin", page);
    headers.set("Access-Control-Expose-Headers", "Retry-After");
  }
  return response;
}
