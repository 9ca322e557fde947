/** The gateway of a run: the sessions of its attempts, for agents in other processes. */
import { createFetch } from "../../chat/endpoint.ts";
import type { SessionOutcome } from "../../contract/trace.ts";
import { isSameKey, keyIn } from "../../http/key.ts";
import { type Listening, listen } from "../../http/listen.ts";
import type { OpenSession, SessionHost, SessionRequest } from "../../task/remote/contract.ts";
import type { GatewaySettings } from "./gateway_settings.ts";

interface Held {
  readonly key: string;
  readonly fetch: (request: Request) => Promise<Response>;
  readonly report: (body: unknown) => void;
}

export class RunGateway implements SessionHost {
  private readonly settings: GatewaySettings;
  private readonly held = new Map<string, Held>();
  private listening: Listening | undefined;

  constructor(settings: GatewaySettings) {
    this.settings = settings;
  }

  async open(): Promise<string> {
    const { host, port } = this.settings;
    this.listening = await listen({ fetch: (request) => this.answer(request) }, { host, port });
    return this.listening.url;
  }

  async close(): Promise<void> {
    this.held.clear();
    await this.listening?.close();
  }

  async openSession({ session_id, engine }: SessionRequest): Promise<OpenSession> {
    const key = crypto.randomUUID();
    let report: (body: unknown) => void = () => {};
    const reported = new Promise<unknown>((resolve) => {
      report = resolve;
    });
    this.held.set(session_id, { key, fetch: createFetch(engine), report });
    const base = `${this.settings.tunnel ?? this.listening!.url}/sessions/${session_id}`;
    return {
      base_url: `${base}/v1`,
      api_key: key,
      callback_url: `${base}/reward`,
      reported,
      end: async (_: Omit<SessionOutcome, "ended_at">) => void this.held.delete(session_id),
    };
  }

  private async answer(request: Request): Promise<Response> {
    const [, id = "", rest = ""] = /^\/sessions\/([^/]+)\/(v1\/.*|reward)$/.exec(new URL(request.url).pathname) ?? [];
    const held = this.held.get(id);
    const given = keyIn(request, { allowsQuery: false });
    if (!held || given === undefined || !(await isSameKey(given, held.key))) return new Response(null, { status: 401 });
    if (rest !== "reward") return held.fetch(request);
    held.report(await request.json());
    return Response.json({});
  }
}
