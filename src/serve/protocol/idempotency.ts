/** Requests sent again after a lost reply, where they carry no number that would tell. */
import type { Context, MiddlewareHandler } from "hono";

/** All others that change something have a number of their client's. */
const UNNUMBERED = /^\/api\/v1\/(create_session|unload_model)$/;
/** Keys remembered. A client repeats what it just sent, not what it sent long ago. */
const REMEMBERED = 1024;

interface Answer {
  readonly status: number;
  readonly body: string;
}

/** A repeat under an `X-Idempotency-Key` gets the first one's answer, unless that was a refusal. */
export function answeredOnce(): MiddlewareHandler {
  const answers = new Map<string, Promise<Answer | undefined>>();
  return async (c, next) => {
    const key = c.req.header("x-idempotency-key");
    if (key === undefined || !UNNUMBERED.test(c.req.path)) return next();
    const name = `${c.req.path} ${key}`;
    // Without a wait in between where there is none: a repeat may be on its heels.
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
