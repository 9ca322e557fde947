/** A well-behaved client of an attacked server. */
import type { Known } from "./bodies.ts";

export class Client {
  private readonly url: string;

  constructor(url: string) {
    this.url = url;
  }

  /** @throws Error for any status but 200 and 204. */
  async post(path: string, body: object): Promise<Record<string, unknown>> {
    const headers = { "content-type": "application/json" };
    const request = { method: "POST", headers, body: JSON.stringify(body) };
    const answer = await fetch(`${this.url}/api/v1/${path}`, request);
    if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
    return answer.status === 204 ? {} : ((await answer.json()) as Record<string, unknown>);
  }

  /** POSTs, and waits for the result of what was promised. */
  async result(path: string, body: object): Promise<Record<string, unknown>> {
    const { request_id } = await this.post(path, body);
    return this.post("retrieve_future", { request_id });
  }

  /** A training client and a sampling client of one session. */
  async open(): Promise<Known> {
    const { session_id } = await this.post("create_session", {});
    const create = { session_id, model_seq_id: 0, base_model: "toy", lora_config: { rank: 4 } };
    const { model_id } = await this.result("create_model", create);
    const open = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
    const { sampling_session_id } = await this.post("create_sampling_session", open);
    return { model: String(model_id), sampler: String(sampling_session_id) };
  }
}
