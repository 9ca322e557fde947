/** Serves the page that trains a model: a few files of the build, to this machine's browser. */
import { readFileSync } from "node:fs";
import { ConfigError } from "../../leaves/errors.ts";
import { guardHandler, type Handler } from "../../leaves/http/guard.ts";
import { type Listening, listen, type SocketLimits } from "../../leaves/http/listen.ts";
import { Refusal } from "../../leaves/http/refusal.ts";

export interface DemoOptions {
  readonly host: string;
  /** 0 takes any free port. */
  readonly port: number;
  /** Further names (without a port) that the server is reached by. */
  readonly allowedHosts?: readonly string[];
  readonly limits?: Partial<SocketLimits>;
}

/** Type and name of the file at each path. */
const FILES: Readonly<Record<string, readonly [type: string, name: string]>> = {
  "/": ["text/html", "index.html"],
  "/index.html": ["text/html", "index.html"],
  "/main.js": ["text/javascript", "main.js"],
  "/worker.js": ["text/javascript", "worker.js"],
  "/style.css": ["text/css", "style.css"],
};

/** The page runs its own scripts and connects to nothing: what a person drops on it stays there. */
const POLICY =
  "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** @throws {ConfigError} where the page was not built, the port is taken or the host is not this machine's */
export function serveDemo({ host, port, limits, allowedHosts = [] }: DemoOptions): Promise<Listening> {
  const texts = new Map(Object.values(FILES).map(([, name]) => [name, pageFile(name)]));
  const site = { host, names: allowedHosts, origins: [] };
  const fetch = guardHandler(routes(texts), { site, methods: [], headers: [] });
  return listen({ fetch }, { host, port, limits });
}

function routes(texts: ReadonlyMap<string, string>): Handler {
  return ({ method, url }) => {
    if (method !== "GET" && method !== "HEAD")
      throw new Refusal(405, "Cannot change anything: this server only shows a page. Send GET.");
    const [type, name] = FILES[new URL(url).pathname] ?? [];
    if (name === undefined) throw new Refusal(404, "There is no such page on this server.");
    const headers = { "Content-Type": `${type}; charset=utf-8`, "Content-Security-Policy": POLICY };
    return new Response(texts.get(name), { headers });
  };
}

/** Text of a file of the build. The same path holds from `src/cli/run` and from `dist/cli/run`. */
function pageFile(name: string): string {
  const file = new URL(`../../../dist/page/train/${name}`, import.meta.url);
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(
      `Cannot serve the page: ${(cause as Error).message}. Run \`npm run build\` in a checkout, or reinstall grpu.`,
      { kind: "data" },
    );
  }
}
