/** A well-behaved client of an attacked server. */
import { setTimeout as pause } from "node:timers/promises";
import type { Known } from "./bodies.ts";

type Answer = Record<string, unknown>;

const TRY_AGAIN = 408;
const RETRY_MS = 50;

export class Client {
  private readonly url: string;
  private readonly isPatient: boolean;

  /** @param options.isPatient sends a request again when the connection breaks, as Tinker's SDK does. */
  constructor(url: string, options: { readonly isPatient?: boolean } = {}) {
    this.url = url;
    this.isPatient = options.isPatient ?? false;
  }

  /** Sends JSON, or a batch of protobuf; again after a 408. @throws Error for any other status but 200 and 204. */
  async post(path: string, body: object): Promise<Answer> {
    const isBatch = body instanceof Uint8Array;
    const headers = { "content-type": isBatch ? "application/x-protobuf" : "application/json" };
    const bytes = isBatch ? (body as Uint8Array<ArrayBuffer>) : JSON.stringify(body);
    for (;;) {
      const answer = await fetch(`${this.url}/api/v1/${path}`, { method: "POST", headers, body: bytes }).catch(
        (error) => (this.isPatient ? pause(RETRY_MS) : Promise.reject(error)),
      );
      if (!answer) continue;
      if (answer.ok) return contentOf(answer);
      const text = await answer.text();
      if (answer.status !== TRY_AGAIN) throw new Error(`${path} answered ${answer.status}: ${text}`);
    }
  }

  /** POSTs, and waits for the result of what was promised. A result of protobuf is empty here. */
  async result(path: string, body: object): Promise<Answer> {
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

async function contentOf(answer: Response): Promise<Answer> {
  const isJson = answer.headers.get("content-type")?.startsWith("application/json");
  const bytes = await answer.arrayBuffer();
  return isJson ? JSON.parse(new TextDecoder().decode(bytes)) : {};
}
