/** Random requests for servers other than Tinker's: most of them nearly right, which reaches furthest; and what the answers must be. */
import { type Agent, request } from "node:http";
import { TOKEN } from "../fixtures/cluster.ts";
import type { Kind } from "./attacked.ts";
import type { FuzzRequest } from "./fuzz_requests.ts";
import { type Chance, mutateJson, mutateText } from "./mutate.ts";

export const AGENT_KEY = "sk-attacked";
export const ADMIN_TOKEN = "admin-attacked";

const MESSAGES = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "What is 6 * 7?" },
];
const TOOL = {
  type: "function",
  function: { name: "add", description: "adds", parameters: { type: "object", properties: { a: { type: "number" } } } },
};
const SAMPLING = { max_tokens: 4, temperature: 1, top_p: 1, seed: 1, n: 2, stop: ["x"] };

/** Calls of models: path below `/v1/` or below a session's. */
const CALLS: readonly (readonly [string, object])[] = [
  ["v1/chat/completions", { model: "letters", messages: MESSAGES, ...SAMPLING, logprobs: true, top_logprobs: 2 }],
  [
    "v1/chat/completions",
    { model: "letters", messages: MESSAGES, stream: true, stream_options: { include_usage: true } },
  ],
  ["v1/chat/completions", { model: "letters", messages: MESSAGES, tools: [TOOL], tool_choice: "auto", max_tokens: 8 }],
  [
    "v1/chat/completions",
    {
      model: "letters",
      messages: MESSAGES,
      response_format: { type: "json_schema", json_schema: { name: "a", schema: {} } },
    },
  ],
  ["v1/completions", { model: "letters", prompt: [1, 2, 3], ...SAMPLING, return_token_ids: true }],
  ["v1/completions", { model: "letters", prompt: "abc", echo: false, logprobs: 1 }],
  ["v1/responses", { model: "letters", input: "hello", instructions: "short", max_output_tokens: 4, stream: false }],
  ["v1/messages", { model: "letters", messages: [{ role: "user", content: "hi" }], max_tokens: 4, system: "s" }],
  ["v1/messages", { model: "letters", messages: [{ role: "user", content: "hi" }], max_tokens: 4, stream: true }],
];

type Route = readonly [method: string, path: string, body?: object];

const GATEWAY_ROUTES: readonly Route[] = [
  ["POST", "sessions", { session_id: "s-1", metadata: { a: { b: [1] } }, sampling_params: { temperature: 0.5 } }],
  ["POST", "sessions", { session_id: "s-1", metadata: { rllm_metadata: { session_id: "s-2" } }, own_key: false }],
  ["POST", "sessions", { session_id: "own", own_key: true }],
  ["POST", "sessions/batch_delete", { session_ids: ["s-2", "s-3"] }],
  ["POST", "sessions/s-1/reward", { reward: 1, is_correct: true, metrics: { turns: 2 } }],
  ["POST", "traces/query", { session_ids: ["s-1"], since: 0, limit: 3 }],
  ["POST", "admin/weight_version", { weight_version: 3 }],
  ["POST", "admin/flush", {}],
  ["GET", "sessions?since=0&limit=5"],
  ["GET", "sessions/s-1"],
  ["GET", "sessions/s-1/traces?limit=2"],
  ["DELETE", "sessions/s-4"],
  ["GET", "traces/t"],
  ["GET", "admin/workers"],
  ["GET", "admin/weight_version"],
  ["GET", "health"],
  ["GET", "v1/models"],
  ["GET", "metrics"],
  ["GET", ""],
  ["GET", "view/"],
  ["GET", "view/sessions.json?limit=3"],
  ["GET", "view/session.json?id=s-1"],
];

const OPENAI_ROUTES: readonly Route[] = [
  ["GET", "health"],
  ["GET", "health/workers"],
  ["GET", "v1/models"],
  ["GET", "v1/models/letters"],
  ["GET", "metrics"],
  ["GET", ""],
  ["GET", "v1/responses/resp_1"],
  ["DELETE", "v1/responses/resp_1"],
  ["POST", "v1/messages/count_tokens", { model: "letters", messages: MESSAGES.slice(1) }],
  ["POST", "admin/weight_version", { weight_version: 3 }],
];

const JUDGED = { id: "call", items: [{ solution: "42", extra_info: { split: "train", grpu_task: 0 } }] };
const REWARD_ROUTES: readonly Route[] = [
  ["POST", "rewards", JUDGED],
  ["POST", "rewards", { ...JUDGED, items: [...JUDGED.items, ...JUDGED.items] }],
  ["POST", "rollouts", { seq: 0, id: "a", task: { split: "train", index: 0 }, sampling: { temperature: 1 } }],
  ["POST", "rollouts", { seq: 1, id: "a", results: [{ call: 0, token_ids: [1, 2], log_probs: [-1, -2] }] }],
  ["DELETE", "rollouts/a"],
  ["GET", "health"],
  ["GET", "metrics"],
];

const DEMO_ROUTES: readonly Route[] = [
  ["GET", ""],
  ["GET", "main.js"],
  ["GET", "worker.js"],
  ["GET", "../package.json"],
  ["POST", "", {}],
];

/** What a server is asked. */
interface Surface {
  readonly calls: readonly (readonly [string, object])[];
  readonly routes: readonly Route[];
  readonly hasSessions: boolean;
  /** The key of a path. */
  readonly keyOf: (path: string) => string;
}

const gatewayKey = (path: string) => (/v1\/|\/reward$|^sessions$/.test(path) ? AGENT_KEY : ADMIN_TOKEN);

export type FuzzedKind = Extract<Kind, "gateway" | "openai" | "rewards" | "demo">;

export const SURFACES: Readonly<Record<FuzzedKind, Surface>> = {
  gateway: { calls: CALLS, routes: GATEWAY_ROUTES, hasSessions: true, keyOf: gatewayKey },
  openai: { calls: CALLS, routes: OPENAI_ROUTES, hasSessions: false, keyOf: gatewayKey },
  rewards: { calls: [], routes: REWARD_ROUTES, hasSessions: false, keyOf: () => TOKEN },
  demo: { calls: [], routes: DEMO_ROUTES, hasSessions: false, keyOf: () => "" },
};

const SESSIONS = [
  "s-1",
  "own",
  "a%0Ab",
  "a%E2%80%A8b",
  "a/b",
  "a%2Fb",
  "..%2f..%2fadmin",
  "%00",
  "é",
  "s".repeat(300),
  "v1",
  "sessions",
  ".",
];
const METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
const KEYS = [AGENT_KEY, AGENT_KEY, AGENT_KEY, ADMIN_TOKEN, "", "wrong", `${AGENT_KEY}x`, "my-shared-secret"];

export function randomRequest(surface: Surface, chance: Chance): FuzzRequest {
  const base = surface.calls.length > 0 && chance.is(0.6) ? modelCall(surface, chance) : route(surface, chance);
  const headers: Record<string, string> = { ...base.headers };
  if (chance.is(0.05)) headers["content-type"] = chance.pick(["text/plain", "application/x-protobuf", ""]);
  if (chance.is(0.04)) headers["content-encoding"] = chance.pick(["zstd", "gzip", "br", "identity"]);
  if (chance.is(0.03)) headers.host = chance.pick(["evil.example", "localhost:1", "[::1", "a b"]);
  if (chance.is(0.03)) headers.origin = chance.pick(["null", "http://evil.example", "x"]);
  if (chance.is(0.1)) headers["x-session-id"] = chance.pick(SESSIONS.slice(0, 4));
  const path = chance.is(0.08) ? mutateText(base.path, chance) : base.path;
  return { ...base, headers, path: encoded(path), method: chance.is(0.05) ? chance.pick(METHODS) : base.method };
}

function modelCall(surface: Surface, chance: Chance): FuzzRequest {
  const [path, body] = chance.pick(surface.calls);
  const at = surface.hasSessions && chance.is(0.5) ? `sessions/${chance.pick(SESSIONS)}/${path}` : path;
  return withBody(["POST", at, body], { surface, chance });
}

function route(surface: Surface, chance: Chance): FuzzRequest {
  return withBody(chance.pick(surface.routes), { surface, chance });
}

function withBody([method, path, body]: Route, { surface, chance }: { surface: Surface; chance: Chance }): FuzzRequest {
  const key = chance.is(0.85) ? surface.keyOf(path) : chance.pick(KEYS);
  const bearer = chance.is(0.1) ? { "x-api-key": key } : { authorization: `Bearer ${key}` };
  if (!body) return { method, path: `/${path}`, headers: bearer };
  const changed = chance.is(0.85) ? mutateJson(body, chance) : body;
  const text = JSON.stringify(changed) ?? "";
  return {
    method,
    path: `/${path}`,
    headers: { ...bearer, "content-type": "application/json" },
    body: chance.is(0.15) ? mutateText(text, chance) : text,
  };
}

function encoded(path: string): string {
  return [...`/${path.replace(/^\/+/, "")}`]
    .map((it) => (/[!-~]/.test(it) ? it : it === " " ? "+" : "%ff"))
    .join("")
    .slice(0, 12_000);
}

export interface FuzzAnswer {
  /** 0: the connection was ended. */
  readonly status: number;
  readonly text: string;
}

export function sendFor(url: string, { agent, of }: { agent: Agent; of: FuzzRequest }): Promise<FuzzAnswer> {
  return new Promise((resolve) => {
    const ended = () => resolve({ status: 0, text: "" });
    const bytes = of.body === undefined ? undefined : Buffer.from(of.body as string);
    const headers = { ...of.headers, ...(bytes && { "content-length": String(bytes.length) }) };
    const { hostname, port } = new URL(url);
    try {
      const sent = request({ hostname, port, method: of.method, path: of.path, headers, agent }, (answer) => {
        const parts: Buffer[] = [];
        answer.on("error", ended);
        answer.on("data", (part) => parts.push(part));
        answer.on("end", () =>
          resolve({ status: answer.statusCode ?? 0, text: Buffer.concat(parts).toString("utf8").slice(0, 1e6) }),
        );
      });
      sent.on("error", ended);
      sent.end(bytes);
    } catch {
      // Node's client refuses some headers itself.
      ended();
    }
  });
}

const STATUSES: ReadonlySet<number> = new Set([
  0, 200, 204, 400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 422, 429,
]);

/** What is wrong with an answer: its status, its form, or something that it should not tell. Undefined for a good one. */
export function faultIn({ status, text }: FuzzAnswer, { method }: FuzzRequest): string | undefined {
  if (!STATUSES.has(status)) return `the status ${status}`;
  if (/\n\s+at |\/src\/|node_modules|node:internal/.test(text)) return "a stack trace";
  if (text.includes(ADMIN_TOKEN)) return "the admin token";
  if (text.includes(`"${AGENT_KEY}`)) return "an agent's key";
  if (text.includes("key_digest")) return "the digest of a session's key";
  if (status < 400 || status === 0 || method === "HEAD") return undefined;
  return isError(text) ? undefined : `an error of another form: ${text.slice(0, 200)}`;
}

/** The documented forms: OpenAI's, Anthropic's, the gateway's own, and that of the checks in front of every server. */
function isError(text: string): boolean {
  let body: { error?: unknown; detail?: unknown };
  try {
    body = JSON.parse(text);
  } catch {
    return false;
  }
  const { error, detail } = body;
  if (typeof detail === "string" || typeof error === "string") return true;
  const { message, type } = (error ?? {}) as { message?: unknown; type?: unknown };
  return typeof message === "string" && message.length > 0 && typeof type === "string";
}
