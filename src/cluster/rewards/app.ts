/** The service as a plain `fetch` handler. Every route asks for the token. */

import { type Context, Hono } from "hono";
import { ByteBudget } from "../../leaves/http/budget.ts";
import { guardHandler, type RequestGuardOptions } from "../../leaves/http/guard.ts";
import type { JsonLimits } from "../../leaves/http/json.ts";
import { readJsonBody } from "../../leaves/http/json_body.ts";
import type { App } from "../../leaves/http/listen.ts";
import { Refusal, refusalResponse } from "../../leaves/http/refusal.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { Answers } from "./answers.ts";
import type { ServiceFigures, ServiceStats } from "./figures.ts";
import type { ServiceJudge } from "./judge.ts";
import { serviceMetricsText } from "./metrics.ts";
import type { ServiceLimits } from "./options.ts";
import { PROTOCOL_VERSION } from "./protocol.ts";
import { readId, readRewardItems } from "./read.ts";
import type { NumberedRequest, OpenRollouts } from "./rollouts.ts";

export interface ServiceParts {
  readonly run: string;
  readonly token: string;
  readonly host: string;
  readonly limits: ServiceLimits;
  readonly isSingleTurn: boolean;
  readonly judge: ServiceJudge;
  readonly rollouts: OpenRollouts;
  readonly answers: Answers;
  readonly figures: ServiceFigures;
  readonly isClosing: () => boolean;
  readonly stats: () => ServiceStats;
  /** Takes what failed inside of the service. */
  readonly warn: (message: string) => void;
}

/** The replies of a whole step may come in one request. */
const JSON_LIMITS: JsonLimits = {
  depth: 64,
  values: 524_288,
  numbers: { most: 2 ** 21, keys: ["token_ids", "log_probs"], level: 3 },
};

/** A request with its share of the memory for bodies. */
interface HeldRequest extends NumberedRequest {
  /** Gives it back before the answer. */
  release(): void;
}

export function createServiceApp(parts: ServiceParts): App {
  const app = new Hono();
  const budget = new ByteBudget(parts.limits.allBodyBytes);
  const answering = (answer: (request: HeldRequest) => Promise<string>) => async (c: Context) => {
    if (parts.isClosing()) throw new Refusal(503, "Cannot take the request: the service is closing.");
    const { body, print, lease } = await readJsonBody(c.req.raw, {
      budget,
      bytes: parts.limits.bodyBytes,
      json: JSON_LIMITS,
    });
    try {
      return json(await answer({ body, print, release: () => lease.release() }));
    } finally {
      lease.release();
    }
  };
  app.onError((error) => failure(error, parts));
  app.notFound((c) =>
    failure(new Refusal(404, `There is no route ${c.req.method} ${c.req.path.slice(0, 200)}.`), parts),
  );
  app.get("/health", (c) => c.json({ service: "grpu", run: parts.run, protocol: PROTOCOL_VERSION }));
  app.get("/metrics", (c) => c.text(serviceMetricsText(parts.stats(), parts.figures)));
  app.post(
    "/rewards",
    answering((request) => judged(request, parts)),
  );
  app.post(
    "/rollouts",
    answering((request) => {
      const reply = parts.rollouts.answer(request);
      // The rollout has taken what it needs, and its next call may be long in coming.
      request.release();
      return reply;
    }),
  );
  app.delete("/rollouts/:id", (c) => c.json({ given_up: parts.rollouts.giveUp(c.req.param("id")) }));
  return { fetch: guardHandler((request) => app.fetch(request), guardOf(parts)) };
}

/** @throws {Refusal} 422 where replies cannot be judged alone, 503 above the limit */
async function judged({ body, print }: NumberedRequest, parts: ServiceParts): Promise<string> {
  const { answers, judge, limits, figures, isSingleTurn } = parts;
  const key = `the rewards ${readId(body)}`;
  const answer = answers.find(key, print);
  if (answer) return answer;
  if (!isSingleTurn)
    throw new Refusal(
      422,
      "Cannot judge replies by themselves: the run's rollout is an agent, a game or a workflow. Run it with POST /rollouts.",
    );
  const items = readRewardItems(body);
  const { waiting } = figures.judgements;
  // A request larger than the limit is taken when nothing else waits: it would never fit otherwise.
  if (waiting > 0 && waiting + items.length > limits.judgements)
    throw new Refusal(503, `Cannot judge ${items.length} replies now: ${waiting} wait already. Try again later.`, {
      retryAfter: 2,
    });
  return answers.add(key, { print, make: async () => stringifyJson({ results: await judge.judge(items) }) });
}

function json(text: string): Response {
  return new Response(text, { headers: { "Content-Type": "application/json" } });
}

/** Clients try again after 503 alone: a service whose memory for bodies is in use is one that is busy. */
function failure(error: unknown, { figures, warn }: ServiceParts): Response {
  if (!(error instanceof Refusal)) warn(`A request failed: ${error instanceof Error ? error.stack : String(error)}`);
  const refusal =
    error instanceof Refusal ? error : new Refusal(500, "Cannot answer: the service failed. See its log.");
  const shown =
    refusal.status === 429 ? new Refusal(503, refusal.message, { retryAfter: refusal.retryAfter }) : refusal;
  figures.refused(shown.status);
  return refusalResponse(shown);
}

function guardOf({ token, host, figures }: ServiceParts): RequestGuardOptions {
  return {
    site: { host, names: "any", origins: [] },
    apiKey: token,
    keyAdvice: "Send the run's token as Authorization: Bearer TOKEN.",
    methods: ["GET", "POST", "DELETE"],
    headers: ["Authorization", "Content-Type"],
    onRefused: (status) => figures.refused(status),
  };
}
