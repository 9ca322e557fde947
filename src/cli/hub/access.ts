/**
 * Access to a hub in Hugging Face's protocol: the official package, which is optional, with requests that retry, never show the
 * token, and send it to the hub alone.
 */
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { ConfigError, fileError, RemoteError } from "../../leaves/errors.ts";
import type { Io } from "../command.ts";
import { hubFetch } from "./requests.ts";

/** Parameters that every function of the package takes. */
interface Common {
  readonly hubUrl: string;
  readonly fetch: typeof fetch;
  readonly accessToken?: string;
}

/** A file of a repository. */
export interface HubFile {
  readonly type: "file" | "directory" | "unknown";
  readonly path: string;
  readonly size: number;
  /** SHA-1 of the git object. */
  readonly oid?: string;
  /** Its `oid` is the SHA-256 of the content. */
  readonly lfs?: { readonly oid: string; readonly size: number };
}

/** The part of `@huggingface/hub` that is used here: the package is optional, and so are its types. */
export interface HubPackage {
  modelInfo(query: Common & { name: string; revision: string; additionalFields: readonly string[] }): Promise<{
    readonly sha?: string;
  }>;
  listFiles(query: Common & { repo: string; revision: string; recursive: boolean }): AsyncIterable<HubFile>;
  createRepo(request: Common & { repo: string; visibility?: "private" }): Promise<unknown>;
  createBranch(request: Common & { repo: string; branch: string }): Promise<void>;
  commit(
    request: Common & {
      repo: string;
      branch: string;
      title: string;
      operations: readonly { operation: "addOrUpdate"; path: string; content: URL | Blob }[];
      useXet: boolean;
      abortSignal: AbortSignal;
    },
  ): Promise<{ readonly commit: { readonly oid: string; readonly url: string } } | undefined>;
}

export interface Hub extends Common {
  readonly package: HubPackage;
  /** A `fetch` for files, whose bodies are as long as they are. */
  readonly fetchFile: typeof fetch;
  readonly signal: AbortSignal;
}

/** Returns the parameters of a hub that the package's functions take. */
export function common({ hubUrl, fetch, accessToken }: Hub): Common {
  return { hubUrl, fetch, ...(accessToken !== undefined && { accessToken }) };
}

/**
 * Calls the package. Errors of its own, for answers that it does not understand, become a {@link RemoteError}.
 * @throws errors of requests, and the package's for a conflict (409), as they are.
 */
export async function ask<T>(hub: Hub, call: (hubPackage: HubPackage, common: Common) => Promise<T>): Promise<T> {
  try {
    return await call(hub.package, common(hub));
  } catch (error) {
    hub.signal.throwIfAborted();
    if (error instanceof ConfigError || error instanceof RemoteError || isConflict(error)) throw error;
    const said = String((error as Error)?.message ?? error).slice(0, 300);
    const masked = hub.accessToken ? said.replaceAll(hub.accessToken, "***") : said;
    throw (
      fileError(error) ??
      new RemoteError(
        `Cannot use the repository: the hub's answer is not understood (${masked}). Check HF_ENDPOINT (${hub.hubUrl}).`,
        { retryable: false },
      )
    );
  }
}

/** Whether the hub refuses to make what exists. */
export function isConflict(error: unknown): boolean {
  return (error as { statusCode?: number } | undefined)?.statusCode === 409;
}

/**
 * Opens the hub at HF_ENDPOINT with the token in HF_TOKEN.
 * @param options.needsToken whether to refuse to go on without one.
 * @throws {ConfigError} for a malformed address or token, or without the package.
 */
export async function openHub({ env, signal, err }: Io, options: { needsToken: boolean }): Promise<Hub> {
  const hubUrl = endpointOf(env.HF_ENDPOINT || "https://huggingface.co");
  const token = env.HF_TOKEN?.trim() || undefined;
  if (token === undefined && options.needsToken)
    throw new ConfigError(
      `Cannot push: HF_TOKEN is not set. Make a token that may write at ${hubUrl}/settings/tokens.`,
    );
  if (token !== undefined && !/^hf_[\x21-\x7e]*$/.test(token))
    throw new ConfigError("Cannot use HF_TOKEN: a token starts with hf_ and contains no spaces. Copy it again.");
  return {
    package: await openPackage(),
    hubUrl,
    ...(token !== undefined && { accessToken: token }),
    fetch: hubFetch({ hubUrl, token, signal, notify: err }),
    fetchFile: hubFetch({ hubUrl, token, signal, notify: err, isFile: true }),
    signal,
  };
}

function endpointOf(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.username || url?.password)
    throw new ConfigError(`Cannot use HF_ENDPOINT: it contains a password (${url.origin}). Put a token into HF_TOKEN.`);
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash)
    throw new ConfigError(
      `Cannot use HF_ENDPOINT: it is no plain http or https address (${text}). Correct or unset it.`,
    );
  return text.replace(/\/+$/, "");
}

async function openPackage(): Promise<HubPackage> {
  const path = findHubPackage();
  if (path === undefined)
    throw new ConfigError(
      "Cannot reach the hub: the package @huggingface/hub is not installed. Run `npm install @huggingface/hub`.",
    );
  const module = (await import(path)) as HubPackage & { readonly default?: HubPackage };
  return module.default?.commit ? module.default : module;
}

/** Address of the optional package, next to grpu or in the project of the working directory; undefined where it is not installed. */
export function findHubPackage(): string | undefined {
  for (const from of [import.meta.url, pathToFileURL(join(process.cwd(), "package.json")).href]) {
    try {
      return pathToFileURL(createRequire(from).resolve("@huggingface/hub")).href;
    } catch {}
  }
  return undefined;
}
