/**
 * Rights of callers: agents call models with their keys, a session's own key opens that session alone, and the admin
 * token manages sessions, traces and workers. None of the three is accepted in place of another.
 */
import { ConfigError } from "../../leaves/errors.ts";
import { areEqual, digestOf, keyIn, toHex } from "../../leaves/http/key.ts";
import { isForeignPage, isLoopback } from "../../leaves/http/origin.ts";

/** Keys and callers that a gateway accepts. */
export interface GatewayAuth {
  /** Keys of agents. Without one, anyone may call a gateway that only this machine reaches. */
  readonly apiKeys?: readonly string[] | undefined;
  /** Token of the admin routes. Without one, they are open where only this machine reaches the gateway and agents have no keys. */
  readonly adminToken?: string | undefined;
  /**
   * Others reach the gateway through a tunnel or a proxy, so that listening on loopback protects nothing. A name in
   * `allowedHosts` that is not of this machine says so as well. Default false.
   */
  readonly isExposed?: boolean | undefined;
}

/** rLLM's default for `rllm.sdk.proxy.admin_token`. */
export const PUBLISHED_TOKEN = "my-shared-secret";

/** A refused caller. */
export class AccessRefusal extends Error {
  override readonly name = "AccessRefusal";
  readonly status: 401 | 403;
  constructor(status: 401 | 403, message: string) {
    super(message);
    this.status = status;
  }
}

/** @throws {ConfigError} for keys that protect nothing, and for a gateway that others reach without a token of its own */
export function checkAuth({ apiKeys = [], adminToken, isExposed }: GatewayAuth, host: string): void {
  if (adminToken === "" || apiKeys.includes(""))
    throw new ConfigError(
      "Cannot start a gateway with an empty key or admin token: anybody can send it. Choose a secret.",
    );
  if (adminToken !== undefined && apiKeys.includes(adminToken))
    throw new ConfigError(
      "Cannot start a gateway whose admin token is also an agent's key: agents would manage it. Choose two secrets.",
    );
  if (isLoopback(host) && !isExposed) return;
  const rule = "a gateway that other machines reach";
  if (adminToken === undefined)
    throw new ConfigError(`Cannot start ${rule} without an admin token (${host}). Set rllm.sdk.proxy.admin_token.`);
  if (adminToken === PUBLISHED_TOKEN)
    throw new ConfigError(
      `Cannot start ${rule} with the published admin token (${host}): everybody knows it. Set rllm.sdk.proxy.admin_token to a secret.`,
    );
}

/** A caller's place in the limits. */
export type CallerId = string;

/** The caller without a key, where that is allowed. */
export const LOCAL_CALLER: CallerId = "local";

/** Somebody who was let in. */
export interface Caller {
  readonly id: CallerId;
  /** Sent the admin token, or needs none. */
  readonly isAdministrator: boolean;
}

/** A session's demands on its callers. */
export interface GuardedSession {
  readonly id: string;
  /** Digest of its own key; without one, agents' keys open it. */
  readonly key?: Uint8Array | undefined;
}

interface Known {
  readonly id: CallerId;
  readonly digest: Uint8Array;
}

export class Access {
  private readonly keys: readonly Known[];
  private readonly admin: Uint8Array | undefined;
  private readonly isLocal: boolean;

  /** @throws {ConfigError} as {@link checkAuth} */
  static async open(auth: GatewayAuth, host: string): Promise<Access> {
    checkAuth(auth, host);
    const digests = await Promise.all((auth.apiKeys ?? []).map(digestOf));
    const keys = digests.map((digest) => ({ id: `key ${shortOf(digest)}`, digest }));
    const admin = auth.adminToken === undefined ? undefined : await digestOf(auth.adminToken);
    return new Access({ keys, admin, isLocal: isLoopback(host) && !auth.isExposed });
  }

  private constructor(parts: { keys: readonly Known[]; admin: Uint8Array | undefined; isLocal: boolean }) {
    this.keys = parts.keys;
    this.admin = parts.admin;
    this.isLocal = parts.isLocal;
  }

  /**
   * Lets an agent in. A session with a key of its own takes that one alone.
   * @throws {AccessRefusal}
   */
  async agent(request: Request, session?: GuardedSession): Promise<CallerId> {
    const key = await keyOf(request);
    if (isSame(key, this.admin))
      throw new AccessRefusal(
        403,
        "Cannot call a model with the admin token: it is for admin routes. Send an agent's key.",
      );
    return this.agentWith(key, session);
  }

  /**
   * Lets in those who may open and end sessions: an agent like {@link agent}, and the administrator.
   * @throws {AccessRefusal}
   */
  async agentOrAdministrator(request: Request, session?: GuardedSession): Promise<Caller> {
    const key = await keyOf(request);
    // Where there is no token, everybody here is the administrator, who gave the session its key and does not send it.
    const manages = session?.key && !isSame(key, session.key) && this.isOpenTo(request);
    if (manages || isSame(key, this.admin)) return { id: "administrator", isAdministrator: true };
    return { id: this.agentWith(key, session), isAdministrator: false };
  }

  private agentWith(key: Uint8Array | undefined, session: GuardedSession | undefined): CallerId {
    if (session?.key) {
      if (isSame(key, session.key)) return `session ${session.id}`;
      throw new AccessRefusal(
        401,
        "Cannot call the session: the key is missing, or of another session. Send the session's key.",
      );
    }
    const match = this.keys.find(({ digest }) => isSame(key, digest));
    if (match) return match.id;
    if (this.isLocal && this.keys.length === 0) return LOCAL_CALLER;
    throw new AccessRefusal(
      401,
      "Cannot answer: the API key is missing or wrong. Send one as Authorization: Bearer KEY.",
    );
  }

  /** Lets the trainer in. @throws {AccessRefusal} */
  async administrator(request: Request, options: { readonly allowsQuery?: boolean } = {}): Promise<void> {
    const key = await keyOf(request, options.allowsQuery);
    if (isSame(key, this.admin)) return;
    if (this.isOpenTo(request)) return;
    if (this.isAgent(key))
      throw new AccessRefusal(403, "Cannot use an admin route with an agent's key. Send the admin token.");
    throw new AccessRefusal(
      401,
      "Cannot use an admin route: the admin token is missing or wrong. Send it as Authorization: Bearer TOKEN.",
    );
  }

  /** Whether the admin routes need no token. */
  private isOpenTo(request: Request): boolean {
    // A page of another site may call models where `--cors` names it: that does not make it the administrator.
    return this.admin === undefined && this.isLocal && this.keys.length === 0 && !isForeignPage(request);
  }

  private isAgent(key: Uint8Array | undefined): boolean {
    return this.keys.some(({ digest }) => isSame(key, digest));
  }
}

async function keyOf(request: Request, allowsQuery = false): Promise<Uint8Array | undefined> {
  const key = keyIn(request, { allowsQuery });
  return key === undefined ? undefined : digestOf(key);
}

function isSame(key: Uint8Array | undefined, expected: Uint8Array | undefined): boolean {
  return key !== undefined && expected !== undefined && areEqual(key, expected);
}

/** Names a key in logs and limits without telling it. */
function shortOf(digest: Uint8Array): string {
  return toHex(digest.subarray(0, 4));
}
