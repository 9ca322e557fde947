/** Requests sent again after a lost reply, for the routes whose requests have no number. */
import type { Context, MiddlewareHandler } from "hono";

/** All other requests that change something carry a number from their client. */
const UNNUMBERED = /^\/api\/v1\/(create_session|unload_model)$/;
/** Keys remembered. A client repeats its latest requests, not old ones. */
const REMEMBERED = 1024;

interface Answer {
  readonly status: number;
  readonly body: string;
}

/** Answers a repeat under an `X-Idempotency-Key` like the first request, unless that one was refused. */
export function answerRepeats(): MiddlewareHandler {
  const answers = new Map<string, Promise<Answer | undefined>>();
  return async (c, next) => {
    const key = c.req.header("x-idempotency-key");
    if (key === undefined || !UNNUMBERED.test(c.req.path)) return next();
    const name = `${c.req.path} ${key}`;
    // No await on an absent answer: a second repeat could pass in between.
    const pending = answers.get(name);
    const first = pending && (await pending);
    if (first)
      return new Response(first.body, {
        status: first.status,
        headers: { "Content-Type": "application/json" },
      });
    let settle: (answer: Answer | undefined) => void = () => {};
    answers.set(
      name,
      new Promise((resolve) => {
        settle = resolve;
      }),
    );
    await next();
    const answer = await answerOf(c);
    if (!answer) answers.delete(name);
    settle(answer);
    const [oldest] = answers.keys();
    if (answers.size > REMEMBERED) answers.delete(oldest!);
  };
}

async function answerOf({ res }: Context): Promise<Answer | undefined> {
  return res.ok ? { status: res.status, body: await res.clone().text() } : undefined;
}
