/** The sessions of clients: what each has open, and which of them end without a word. */
import { checkMetadata } from "./checkpoint/record.ts";
import type { Future } from "./protocol/futures.ts";
import { Refusal } from "./protocol/outcome.ts";

export interface Session {
  readonly id: string;
  readonly created: string;
  readonly userMetadata: Readonly<Record<string, unknown>>;
  readonly runs: Set<string>;
  /** The one used last comes last. */
  readonly samplers: Set<string>;
  /** What was asked under a number before: `model 0`, `sampler 3`. */
  readonly asked: Map<string, { future?: Future; print: string }>;
  lastSeen: number;
}

export interface SessionsOptions {
  /** Sessions at once. */
  readonly most: number;
  /** Without a sign of life for this long a session gives way when all are taken, ms. SDKs show one every 10 s. */
  readonly idleMs: number;
  /** Ends a session and what is in it. Deals with its own failures. */
  readonly end: (id: string, why: string) => void;
}

/** Numbers remembered of each session. A client repeats what it just sent, not what it sent long ago. */
const REMEMBERED = 2048;

export class Sessions {
  private readonly options: SessionsOptions;
  private readonly byId = new Map<string, Session>();

  constructor(options: SessionsOptions) {
    this.options = options;
  }

  get size(): number {
    return this.byId.size;
  }

  keys(): Iterable<string> {
    return this.byId.keys();
  }

  values(): Iterable<Session> {
    return this.byId.values();
  }

  get(id: string): Session | undefined {
    return this.byId.get(id);
  }

  /** @throws Refusal 429 where all are taken and in use, 422 for metadata that is too large. */
  create(userMetadata: Readonly<Record<string, unknown>>): Session {
    checkMetadata(userMetadata);
    if (this.byId.size >= this.options.most) this.giveWay();
    const session: Session = {
      id: crypto.randomUUID(),
      created: new Date().toISOString(),
      userMetadata,
      runs: new Set(),
      samplers: new Set(),
      asked: new Map(),
      lastSeen: Date.now(),
    };
    this.byId.set(session.id, session);
    return session;
  }

  /** Ends the session that has been silent longest, one without training first. */
  private giveWay(): void {
    const now = Date.now();
    const silent = [...this.byId.values()].filter(({ lastSeen }) => now - lastSeen > this.options.idleMs);
    const [given] = silent.sort(
      (a, b) => Math.sign(a.runs.size) - Math.sign(b.runs.size) || a.lastSeen - b.lastSeen,
    );
    if (!given)
      throw new Refusal(
        429,
        `Cannot open a session: ${this.byId.size} are open and in use, the most there may be. Try again later.`,
      );
    this.options.end(given.id, "it showed no sign of life and another one needed its place");
  }

  /** The session, which has shown a sign of life. @throws Refusal 404 */
  find(id: string): Session {
    const session = this.byId.get(id);
    if (!session)
      throw new Refusal(
        404,
        `Cannot find the session ${id.slice(0, 100)}: it has ended, or the server was restarted since. Open a new one (a new ServiceClient); checkpoints are still there.`,
      );
    session.lastSeen = Date.now();
    return session;
  }

  /** @returns what was in it, where it was there. */
  remove(id: string): Session | undefined {
    const session = this.byId.get(id);
    this.byId.delete(id);
    return session;
  }
}

/** What was asked of the session under this name before, if anything. @throws Refusal 400 where it was something else. */
export function askedBefore(session: Session, { key, print }: { key: string; print: string }) {
  const known = session.asked.get(key);
  if (known && known.print !== print)
    throw new Refusal(
      400,
      `Cannot take the request: ${key} of the session was asked for with another content before.`,
    );
  return known;
}

/** Remembers what was asked, and forgets what was asked long ago. */
export function remember(
  session: Session,
  key: string,
  asked: { readonly future?: Future; readonly print: string },
): void {
  session.asked.set(key, asked);
  const [oldest] = session.asked.keys();
  if (session.asked.size > REMEMBERED) session.asked.delete(oldest!);
}
