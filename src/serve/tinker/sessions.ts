/** The sessions of clients, and what each has open. */
import { checkMetadata } from "./checkpoint/record.ts";
import type { Future } from "./protocol/futures.ts";
import { Refusal } from "./protocol/outcome.ts";

export interface TinkerClientSession {
  readonly id: string;
  readonly created: string;
  readonly userMetadata: Readonly<Record<string, unknown>>;
  readonly displayName?: string | undefined;
  /** The project that it belongs to, with its training runs. */
  project?: string | undefined;
  readonly runs: Set<string>;
  /** Samplers in the order of use, the latest last. */
  readonly samplers: Set<string>;
  /** Earlier requests by their number: `model 0`, `sampler 3`. */
  readonly asked: Map<string, { future?: Future; print: string }>;
  lastSeen: number;
}

export interface SessionsOptions {
  /** Open sessions. */
  readonly most: number;
  /** When all sessions are taken, one without a sign of life for this long is ended, ms. SDKs send one every 10 s. */
  readonly idleMs: number;
  /** Ends a session with everything in it. Handles its own failures. */
  readonly end: (id: string, why: string) => void;
}

/** Numbers remembered per session. A client repeats its latest requests, not old ones. */
const REMEMBERED = 2048;

export class TinkerSessions {
  private readonly options: SessionsOptions;
  private readonly byId = new Map<string, TinkerClientSession>();

  constructor(options: SessionsOptions) {
    this.options = options;
  }

  get size(): number {
    return this.byId.size;
  }

  keys(): Iterable<string> {
    return this.byId.keys();
  }

  values(): Iterable<TinkerClientSession> {
    return this.byId.values();
  }

  get(id: string): TinkerClientSession | undefined {
    return this.byId.get(id);
  }

  /** @throws Refusal 429 if all sessions are in use, 422 for metadata that is too large. */
  create(of: Partial<Pick<TinkerClientSession, "userMetadata" | "displayName" | "project">> = {}): TinkerClientSession {
    checkMetadata(of.userMetadata);
    if (this.byId.size >= this.options.most) this.endSilent();
    const session: TinkerClientSession = {
      id: crypto.randomUUID(),
      created: new Date().toISOString(),
      userMetadata: of.userMetadata ?? {},
      displayName: of.displayName,
      project: of.project,
      runs: new Set(),
      samplers: new Set(),
      asked: new Map(),
      lastSeen: Date.now(),
    };
    this.byId.set(session.id, session);
    return session;
  }

  /** Ends the session that has been silent longest, preferably one without training. */
  private endSilent(): void {
    const now = Date.now();
    const silent = [...this.byId.values()].filter(({ lastSeen }) => now - lastSeen > this.options.idleMs);
    const [longest] = silent.sort((a, b) => Math.sign(a.runs.size) - Math.sign(b.runs.size) || a.lastSeen - b.lastSeen);
    if (!longest)
      throw new Refusal(
        429,
        `Cannot open a session: ${this.byId.size} are in use, which is the limit. Try again later.`,
      );
    this.options.end(longest.id, "it was silent and another session needed its place");
  }

  /** The session, for which this counts as a sign of life. @throws Refusal 404 */
  find(id: string): TinkerClientSession {
    const session = this.byId.get(id);
    if (!session)
      throw new Refusal(
        404,
        `Cannot find the session ${id.slice(0, 100)}: it has ended, or the server was restarted. Open a new one (a new ServiceClient); its checkpoints still exist.`,
      );
    session.lastSeen = Date.now();
    return session;
  }

  /** @returns the session, if it was open. */
  remove(id: string): TinkerClientSession | undefined {
    const session = this.byId.get(id);
    this.byId.delete(id);
    return session;
  }
}

/** The session's earlier request of this key, if any. @throws Refusal 400 if its content was another. */
export function askedBefore(session: TinkerClientSession, { key, print }: { key: string; print: string }) {
  const asked = session.asked.get(key);
  if (asked && asked.print !== print)
    throw new Refusal(
      400,
      `Cannot accept the request: the session requested ${key} before, with other settings. Use another number.`,
    );
  return asked;
}

/** Remembers a request, and forgets the oldest. */
export function remember(
  session: TinkerClientSession,
  key: string,
  asked: { readonly future?: Future; readonly print: string },
): void {
  session.asked.set(key, asked);
  const [oldest] = session.asked.keys();
  if (session.asked.size > REMEMBERED) session.asked.delete(oldest!);
}
