/** The open rollouts of a service, and the requests about them: numbered, and each answered once. */

import type { JsonBody } from "../../leaves/http/json_body.ts";
import { Refusal } from "../../leaves/http/refusal.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { Answers } from "./answers.ts";
import { type AttemptParts, noTask, taskAt } from "./attempts.ts";
import type { ServiceFigures } from "./figures.ts";
import { type EndedRollout, GivenUp, OpenRollout } from "./open_rollout.ts";
import type { ServiceLimits, ServiceTimeouts } from "./options.ts";
import { readId, readResults, readRollout, readSeq } from "./read.ts";

export interface RolloutsOptions {
  readonly parts: AttemptParts;
  readonly figures: ServiceFigures;
  readonly answers: Answers;
  readonly limits: ServiceLimits;
  readonly timeouts: ServiceTimeouts;
}

/** A request of `POST /rollouts`. */
export interface NumberedRequest {
  readonly body: JsonBody;
  /** Fingerprint of the body. */
  readonly print: string;
}

export class OpenRollouts {
  private readonly options: RolloutsOptions;
  private readonly open = new Map<string, OpenRollout>();

  constructor(options: RolloutsOptions) {
    this.options = options;
  }

  get count(): number {
    return this.open.size;
  }

  /**
   * The reply, as JSON. The same request again has the same reply.
   * @throws {Refusal} 409 out of order, 410 for a rollout that is not known, 422 for a wrong field, 503 for one too many
   */
  async answer({ body, print }: NumberedRequest): Promise<string> {
    const [id, seq] = [readId(body), readSeq(body)];
    const { answers } = this.options;
    const answer = answers.find(keyOf(id, seq), print);
    if (answer) return this.during(id, answer);
    const rollout = seq === 0 ? this.start(id, body) : this.continued(id, { seq, body });
    rollout.next = seq + 1;
    // Its client has read the one before.
    if (seq > 0) answers.forget(keyOf(id, seq - 1));
    const make = async () => {
      const reply = await rollout.reply();
      // Kept until its client has heard of the end, which may come while the cluster samples.
      if (reply.action === "done" || reply.action === "error") this.open.delete(id);
      return stringifyJson(reply);
    };
    return this.during(id, answers.add(keyOf(id, seq), { print, make }));
  }

  /** @returns whether the rollout was open */
  giveUp(id: string, reason = new GivenUp("given_up", "its client ended it")): boolean {
    this.open.get(id)?.giveUp(reason);
    return this.open.delete(id);
  }

  /** Gives up those whose client has gone. */
  expire(): void {
    const { silence } = this.options.timeouts;
    const oldest = performance.now() - 1000 * silence;
    for (const [id, { running, heardAt }] of this.open)
      if (running === 0 && heardAt < oldest) this.giveUp(id, new GivenUp("silent", `no request came for ${silence} s`));
  }

  /** Gives up all. */
  async close(): Promise<void> {
    const rollouts = [...this.open.values()];
    for (const id of this.open.keys()) this.giveUp(id, new GivenUp("given_up", "the service is closing"));
    await Promise.all(rollouts.map(({ ended }) => ended));
  }

  private start(id: string, body: JsonBody): OpenRollout {
    const { parts, limits, timeouts, figures } = this.options;
    if (this.open.has(id))
      throw new Refusal(409, `Cannot start the rollout ${id}: it runs already. Give each rollout an id of its own.`);
    const request = readRollout(body);
    const task = taskAt(parts, request.task);
    if (!task) throw new Refusal(422, noTask(parts, request.task));
    if (this.open.size >= limits.rollouts)
      throw new Refusal(503, `Cannot start the rollout ${id}: ${this.open.size} are open already. Try again later.`, {
        retryAfter: 5,
      });
    const rollout = new OpenRollout({ request, task, parts, holdMs: 1000 * timeouts.hold });
    this.open.set(id, rollout);
    figures.started++;
    void rollout.ended.then((end) => this.ended(rollout, end));
    return rollout;
  }

  private continued(id: string, { seq, body }: { readonly seq: number; readonly body: JsonBody }): OpenRollout {
    const rollout = this.open.get(id);
    if (!rollout)
      throw new Refusal(
        410,
        `Cannot continue the rollout ${id}: this service does not know it. It has ended, or the service was started again since. Start the rollout again under another id.`,
      );
    if (seq !== rollout.next || rollout.running > 0)
      throw new Refusal(
        409,
        `Cannot take the request ${seq} of the rollout ${id}: the next one is ${rollout.next}, after the answer to the one before. Send one request at a time.`,
      );
    const results = readResults(body);
    rollout.take(results);
    const { figures } = this.options;
    figures.calls += results.length;
    for (const { token_ids } of results) figures.tokens += token_ids.length;
    return rollout;
  }

  /** Counts the request as one that its client waits for. */
  private async during(id: string, answer: Promise<string>): Promise<string> {
    const rollout = this.open.get(id);
    if (!rollout) return answer;
    rollout.running++;
    try {
      return await answer;
    } finally {
      rollout.running--;
      rollout.heardAt = performance.now();
    }
  }

  private ended({ where }: OpenRollout, { how, reply, cutTokens }: EndedRollout): void {
    const { figures } = this.options;
    figures.ends[how]++;
    figures.cutTokens += cutTokens;
    if (reply.action === "error") figures.failed({ kind: "rollout", where, message: reply.message });
  }
}

function keyOf(id: string, seq: number): string {
  return `the request ${seq} of the rollout ${id}`;
}
