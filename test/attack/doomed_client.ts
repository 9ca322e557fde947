/**
 * A client to be killed: `doomed_client PLAN`, where PLAN is the JSON of a {@link DoomedPlan}. It keeps three requests of a training
 * client and two samples under way, and writes what it sends and what is answered to its journal, one JSON line each.
 */
import { appendFileSync } from "node:fs";
import { encodeForwardBackward } from "../../src/train/backend/tinker/protobuf_messages.ts";
import { Client } from "./client.ts";

export interface DoomedPlan {
  readonly url: string;
  readonly journal: string;
  /** A checkpoint to start from; absent: a new model. */
  readonly from?: string | undefined;
  /** A dead client's model, to go on with, and the first of its requests without an answer. */
  readonly takeOver?: { readonly session: string; readonly model: string; readonly seq: number } | undefined;
  /** The optimiser steps in the weights before request 1. */
  readonly baseSteps: number;
}

/** `steps` are the optimiser steps in the weights after the request, `path` where they were saved. */
export type DoomedEntry =
  | { readonly session: string; readonly model: string }
  | { readonly sent: number }
  | { readonly done: number; readonly steps: number; readonly path?: string | undefined }
  | { readonly failed: string };

const IN_FLIGHT = 3;
const SAMPLES_AT_ONCE = 2;
/** 0.7 MB on the wire, so that some kills hit a body on its way. */
const ROWS = 600;
const ROW_TOKENS = 100;

const plan = JSON.parse(process.argv[2]!) as DoomedPlan;
const client = new Client(plan.url, { isPatient: true });
const note = (entry: DoomedEntry) => appendFileSync(plan.journal, `${JSON.stringify(entry)}\n`);

async function open(): Promise<{ session: string; model: string }> {
  if (plan.takeOver) return plan.takeOver;
  const { session_id } = await client.post("create_session", {});
  const start = { session_id, model_seq_id: 0 };
  const made = plan.from
    ? await done("load_weights", { ...start, path: plan.from, optimizer: true })
    : await done("create_model", { ...start, base_model: "toy", lora_config: { rank: 4 } });
  return { session: String(session_id), model: String(made.model_id) };
}

async function done(path: string, body: object): Promise<Record<string, unknown>> {
  const result = await client.result(path, body);
  if (result.error !== undefined) throw new Error(`${path} failed: ${result.error}`);
  return result;
}

/** Request 1 is a gradient, 2 a step, 3 a save, and so on. */
async function request(model_id: string, seq_id: number): Promise<void> {
  const steps = plan.baseSteps + Math.floor((seq_id + 1) / 3);
  const kind = (seq_id - 1) % 3;
  if (kind === 0) await done("forward_backward", gradient(model_id, seq_id));
  else if (kind === 1) await done("optim_step", { model_id, seq_id, adam_params: {} });
  const path =
    kind === 2 ? String((await done("save_weights", { model_id, seq_id, path: `at-${steps}` })).path) : undefined;
  note({ done: seq_id, steps, path });
}

function gradient(modelId: string, seqId: number): Uint8Array {
  const tokens = new Int32Array(ROW_TOKENS).fill(1 + (seqId % 1000));
  const inputs = { target_tokens: new BigInt64Array(ROW_TOKENS).fill(2n) };
  const data = Array.from({ length: ROWS }, () => ({ tokens, inputs }));
  return encodeForwardBackward({ modelId, seqId, data, lossFn: "cross_entropy", config: {}, forwardOnly: false });
}

async function train(model: string): Promise<never> {
  const running = new Set<Promise<void>>();
  for (let seq = plan.takeOver?.seq ?? 1; ; seq++) {
    note({ sent: seq });
    const one = request(model, seq).finally(() => running.delete(one));
    running.add(one);
    if (running.size >= IN_FLIGHT) await Promise.race(running);
  }
}

async function sample(session_id: string): Promise<never> {
  const opened = { session_id, sampling_session_seq_id: Math.floor(1e9 * Math.random()), base_model: "toy" };
  const { sampling_session_id } = await client.post("create_sampling_session", opened);
  const prompt = { chunks: [{ type: "encoded_text", tokens: [1, 2, 3] }] };
  for (;;) await done("asample", { sampling_session_id, num_samples: 4, prompt, sampling_params: { max_tokens: 4 } });
}

try {
  const { session, model } = await open();
  note({ session, model });
  await Promise.all([train(model), ...Array.from({ length: SAMPLES_AT_ONCE }, () => sample(session))]);
} catch (error) {
  note({ failed: String(error) });
  // The other requests would go on.
  process.exit(1);
}
