/** Weights of a conversation's turns in supervised training. */

import type { ChatMessage } from "../engine/contract/text.ts";
import { ConfigError } from "../leaves/errors.ts";
import { stringifyJson } from "../leaves/json.ts";
import { type TrainOnWhat, TURN_WEIGHTS } from "./train_on_what.ts";

/** Weights besides 0. f32, which holds them and the sums of their losses, turns much smaller ones into 0 and larger ones into infinity. */
const [LEAST, MOST] = [1e-6, 1e6];

/**
 * The weight of every message in the loss: 0 for those that the assistant did not write, else what the message says
 * (`weight`: 0, or a number from 1e-6 to 1e6; or `train` or `trainable`: a boolean), else 1, or 0 where `trainOn` leaves the turn out.
 * @throws {ConfigError} for a flag of another type, flags that contradict each other, and a turn of another role that is
 * to be trained on
 */
export function turnWeights(messages: readonly ChatMessage[], trainOn: TrainOnWhat): number[] {
  const last = messages.findLastIndex(({ role }) => role === "assistant");
  return messages.map((message, i) => {
    const flagged = flaggedWeight(message, i);
    if (message.role === "assistant") return flagged ?? Number(trainOn === "all_assistant_messages" || i === last);
    if (flagged === undefined || flagged === 0) return 0;
    throw cannot(
      `message ${i} is to be trained on, and its role is ${message.role}. Only turns of the assistant can be`,
    );
  });
}

function flaggedWeight(message: ChatMessage, i: number): number | undefined {
  const weights = TURN_WEIGHTS.filter((name) => message[name] !== undefined && message[name] !== null).map((name) => {
    const value = message[name];
    if (typeof value === "boolean") return Number(value);
    if (name === "weight" && typeof value === "number" && isWeight(value)) return value;
    const form = name === "weight" ? "0, or a number from 1e-6 to 1e6" : "true or false";
    throw cannot(`${name} of message ${i} must be ${form} (${stringifyJson(value)}). Correct it`);
  });
  if (weights.some((weight) => weight !== weights[0]))
    throw cannot(`${TURN_WEIGHTS.join(", ")} of message ${i} contradict each other. Keep one`);
  return weights[0];
}

function isWeight(value: number): boolean {
  return value === 0 || (value >= LEAST && value <= MOST);
}

function cannot(rule: string): ConfigError {
  return new ConfigError(`Cannot train on the conversation: ${rule}.`);
}
