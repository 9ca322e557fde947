/** Reads the bodies of requests. A worker is of another version or of another author, so that every field is checked. */

import type { JsonBody } from "../../leaves/http/json_body.ts";
import { Refusal } from "../../leaves/http/refusal.ts";
import { stringifyJson } from "../../leaves/json.ts";
import {
  type CallResult,
  type ClusterParams,
  type RewardItem,
  type RolloutRequest,
  TAKES,
  type Takes,
  type TaskPlace,
} from "./protocol.ts";

/** The longest id of a call or a rollout, in UTF-16 units. */
const LONGEST_ID = 200;

/** @throws {Refusal} 422 */
export function readId(body: JsonBody): string {
  const { id } = body;
  if (typeof id === "string" && id.length > 0 && id.length <= LONGEST_ID) return id;
  throw wrong("id", `it must be a text of 1 to ${LONGEST_ID} characters`, id);
}

/** The items of `POST /rewards`. An item without a task of ours is answered with an error, alone. @throws {Refusal} 422 */
export function readRewardItems(body: JsonBody): RewardItem[] {
  const { items } = body;
  if (!Array.isArray(items)) throw wrong("items", "it must be a list", items);
  return items.map((item: unknown, i) => {
    const { solution, extra_info } = objectOf(item, `items[${i}]`);
    if (typeof solution !== "string") throw wrong(`items[${i}].solution`, "it must be a text", solution);
    const { grpu_task: index, split } = objectOf(extra_info, `items[${i}].extra_info`);
    const place = placeOf({ split, index });
    const error = `Cannot find the task of the reply: extra_info must name it with split ("train" or "val") and grpu_task, a whole number (${shown({ split, grpu_task: index })}). Train on the rows that grpu wrote.`;
    return { solution, task: place ?? { error } };
  });
}

/** @throws {Refusal} 422 */
export function readSeq(body: JsonBody): number {
  return readCount(body, "seq");
}

/** The first request of a rollout. @throws {Refusal} 422 */
export function readRollout(body: JsonBody): RolloutRequest {
  const place = placeOf(objectOf(body.task, "task"));
  if (!place) throw wrong("task", 'it must hold split ("train" or "val") and index, a whole number', body.task);
  return {
    task: place,
    rollout_index: readCount(body, "rollout_index"),
    step: readStep(body),
    validate: body.validate === true,
    sampling_params:
      body.sampling_params == null ? {} : (objectOf(body.sampling_params, "sampling_params") as ClusterParams),
    max_prompt_length: readLimit(body, "max_prompt_length"),
    max_response_length: readLimit(body, "max_response_length"),
    takes: readTakes(body),
  };
}

/** The results in a later request of a rollout; absent: none. @throws {Refusal} 422 */
export function readResults(body: JsonBody): CallResult[] {
  const { results = [] } = body;
  if (!Array.isArray(results)) throw wrong("results", "it must be a list", results);
  return results.map((result: unknown, i) => readResult(objectOf(result, `results[${i}]`), `results[${i}]`));
}

function readResult(result: JsonBody, at: string): CallResult {
  const { token_ids, log_probs = null, stop_reason = null } = result;
  if (!isList(token_ids, isTokenId)) throw wrong(`${at}.token_ids`, "it must be a list of token ids", token_ids);
  if (log_probs !== null && !isList(log_probs, Number.isFinite))
    throw wrong(`${at}.log_probs`, "it must be null, or a list of finite numbers", log_probs);
  if (log_probs !== null && log_probs.length !== token_ids.length)
    throw wrong(`${at}.log_probs`, `it must hold one number per token: ${token_ids.length}`, log_probs.length);
  return {
    call: readCount(result, "call"),
    token_ids,
    log_probs,
    stop_reason: typeof stop_reason === "string" ? stop_reason : null,
  };
}

function isList(value: unknown, isItem: (item: unknown) => boolean): value is number[] {
  return Array.isArray(value) && value.every(isItem);
}

function isTokenId(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) < 2 ** 32;
}

function placeOf({ split, index }: JsonBody): TaskPlace | undefined {
  const isSplit = split === "train" || split === "val";
  return isSplit && Number.isInteger(index) && Number(index) >= 0 ? { split, index: Number(index) } : undefined;
}

function readCount(body: JsonBody, name: string): number {
  const value = body[name];
  if (Number.isInteger(value) && Number(value) >= 0) return Number(value);
  throw wrong(name, "it must be a whole number of at least 0", value);
}

/** A worker that does not know the step sends -1. */
function readStep({ step }: JsonBody): number {
  if (Number.isInteger(step) && Number(step) >= -1) return Math.max(0, Number(step));
  throw wrong("step", "it must be a whole number, or -1 where it is not known", step);
}

function readLimit(body: JsonBody, name: string): number | undefined {
  return body[name] == null ? undefined : readCount(body, name);
}

function readTakes({ takes }: JsonBody): Takes | undefined {
  const taken = TAKES.find((each) => each === takes);
  if (taken !== undefined || takes == null) return taken;
  throw wrong("takes", `it must be ${TAKES.join(" or ")}`, takes);
}

function objectOf(value: unknown, at: string): JsonBody {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as JsonBody;
  throw wrong(at, "it must be an object", value);
}

function wrong(field: string, rule: string, value: unknown): Refusal {
  return new Refusal(422, `Cannot read ${field}: ${rule} (${shown(value)}). See the protocol in docs/service.md.`);
}

function shown(value: unknown): string {
  return (stringifyJson(value) ?? String(value)).slice(0, 100);
}
