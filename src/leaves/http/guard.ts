/** Checks in front of every server's routes: allowed hosts, pages and keys; and headers that every answer carries. */
import { areEqual, digestOf, keyIn } from "./key.ts";
import { checkHost, checkOrigin, type SiteRules } from "./origin.ts";
import { Refusal, refusalResponse } from "./refusal.ts";

export type Handler = (request: Request) => Response | Promise<Response>;

export interface RequestGuardOptions {
  readonly site: SiteRules;
  /** The key that clients must send; none when absent. */
  readonly apiKey?: string | undefined;
  /** Advice for a client without the key. Default: set the variable of Tinker's SDK. */
  readonly keyAdvice?: string | undefined;
  /** Paths that need no key. */
  readonly open?: RegExp;
  /** Paths whose key may be in the query, for people's browsers. */
  readonly queryKey?: RegExp;
  /** Methods and headers that allowed pages may send. */
  readonly methods: readonly string[];
  readonly headers: readonly string[];
  /** Called for each request that did not reach a route. */
  readonly onRefused?: (status: number) => void;
}

/** How long browsers cache a preflight, seconds. */
const PREFLIGHT_SECONDS = "600";

/** Wraps a handler in the checks. Never throws, and never answers with a stack trace. */
export function guardHandler(handler: Handler, options: RequestGuardOptions): (request: Request) => Promise<Response> {
  const digest = options.apiKey === undefined ? undefined : digestOf(options.apiKey);
  return async (request) => {
    let page: string | undefined;
    try {
      checkHost(request, options.site);
      page = checkOrigin(request, options.site);
      if (page !== undefined && request.method === "OPTIONS") return finished(preflight(options), page);
      await checkKey(request, { ...options, digest });
    } catch (error) {
      const refusal = error instanceof Refusal ? error : new Refusal(400, "Cannot read the request.");
      options.onRefused?.(refusal.status);
      return finished(refusalResponse(refusal), page);
    }
    try {
      return finished(await handler(request), page);
    } catch (error) {
      const refusal = error instanceof Refusal ? error : new Refusal(500, "Cannot answer: the server failed.");
      return finished(refusalResponse(refusal), page);
    }
  };
}

const TINKER_ADVICE = "Set TINKER_API_KEY to this server's key.";

interface KeyCheck extends Pick<RequestGuardOptions, "open" | "queryKey" | "keyAdvice"> {
  /** Digest of the key; absent: none is needed. */
  readonly digest: Promise<Uint8Array> | undefined;
}

async function checkKey(
  request: Request,
  { digest, open, queryKey, keyAdvice = TINKER_ADVICE }: KeyCheck,
): Promise<void> {
  if (digest === undefined) return;
  const path = new URL(request.url).pathname;
  if (open?.test(path)) return;
  const key = keyIn(request, { allowsQuery: queryKey?.test(path) ?? false });
  if (key !== undefined && areEqual(await digestOf(key), await digest)) return;
  throw new Refusal(401, `Cannot answer: the API key is missing or wrong. ${keyAdvice}`);
}

function preflight({ methods, headers }: RequestGuardOptions): Response {
  return new Response(null, {
    status: 204,
    headers: {
      "Access-Control-Allow-Methods": methods.join(", "),
      "Access-Control-Allow-Headers": headers.join(", "),
      "Access-Control-Max-Age": PREFLIGHT_SECONDS,
      // Chrome asks for this before a page of another site may call this machine.
      "Access-Control-Allow-Private-Network": "true",
    },
  });
}

/** Policy for answers that are not pages: they may load nothing, and no site may frame them. */
const NO_PAGE = "default-src 'none'; frame-ancestors 'none'";

/** Returns the policy of pages: only scripts with the nonce run, and they connect to this server alone. */
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
