/** A rollout whose one model call has been made elsewhere: our reward judges the reply as if it had been sampled here. */

import { readMessages } from "../../chat/messages.ts";
import { parseReply } from "../../chat/reply.ts";
import { endsInReasoning } from "../../chat/reply_reader.ts";
import { encodeText } from "../../chat/seams.ts";
import type { ChatMessage, Tokenizer } from "../../engine/contract/text.ts";
import { UnsupportedError } from "../../leaves/errors.ts";
import { resultOf } from "../../train/loop/rollout/episode.ts";
import type { ChatReply, Completion, Policy, Rollout, RolloutTrajectory } from "../../train/task/rollout.ts";

export interface GivenReply {
  /** The reply as text, without special tokens. */
  readonly text: string;
  /** Variables of the chat template. */
  readonly variables: Readonly<Record<string, unknown>>;
  /** An evaluator reads the episode: its step then has tokens, those of the texts encoded here. */
  readonly hasEvaluator: boolean;
}

/**
 * The rollout on the given reply. It may call the model once, with `complete` or `chat`.
 * @throws Error for a second call, from the call
 */
export function onGivenReply(rollout: Rollout, reply: GivenReply): Rollout {
  return async (task, policy) => {
    const recorded: RolloutTrajectory[] = [];
    const outcome = await rollout(task, givenPolicy(policy, { reply, recorded, name: policy.name }));
    // The loop's own error for an attempt that nothing judges.
    if (outcome === undefined && !reply.hasEvaluator) return undefined;
    return resultOf(outcome, () => recorded);
  };
}

interface Given {
  readonly reply: GivenReply;
  readonly recorded: RolloutTrajectory[];
  readonly name: string;
}

function givenPolicy(policy: Policy, replyState: Given): Policy {
  const record = <T extends Completion>(step: T): T => {
    if (replyState.recorded.length > 0)
      throw new Error(
        "Cannot judge the reply by itself: the rollout calls the model again. Run it as a rollout (POST /rollouts).",
      );
    replyState.recorded.push({ name: replyState.name, steps: [step] });
    return step;
  };
  const overrides: Partial<Policy> = {
    name: replyState.name,
    complete: async (prompt) => record(completion(policy.tokenizer, { prompt, reply: replyState.reply })),
    chat: async (messages) => record(chatReply(policy.tokenizer, { messages, reply: replyState.reply })),
    agent: (name) => givenPolicy(policy, { ...replyState, name }),
  };
  return Object.assign(Object.create(policy) as Policy, overrides);
}

function completion(
  tokenizer: Tokenizer,
  { prompt, reply }: { readonly prompt: string | readonly number[]; readonly reply: GivenReply },
): Completion {
  const prompt_ids = typeof prompt !== "string" ? prompt : reply.hasEvaluator ? encodeText(tokenizer, prompt) : [];
  return { ...stepOf(tokenizer, { reply, prompt_ids }), ...(typeof prompt === "string" && { prompt }) };
}

/** The prompt is that of a first turn, and the message is read from the text, as for a reply that was sampled here. */
function chatReply(
  tokenizer: Tokenizer,
  { messages: expected, reply }: { readonly messages: readonly ChatMessage[]; readonly reply: GivenReply },
): ChatReply {
  const messages = readMessages(expected);
  const prompt = formatted(tokenizer, { messages, reply });
  const message = parseReply(reply.text, { id: "call_0", isReasoning: endsInReasoning(prompt) });
  const prompt_ids = reply.hasEvaluator ? tokenizer.encode(prompt, { addSpecialTokens: false }) : [];
  return { ...stepOf(tokenizer, { reply, prompt_ids }), message, chat_completions: [...messages, message] };
}

function formatted(
  tokenizer: Tokenizer,
  { messages, reply }: { readonly messages: readonly ChatMessage[]; readonly reply: GivenReply },
): string {
  if (tokenizer.formatChat) return tokenizer.formatChat(messages, { variables: reply.variables });
  throw new UnsupportedError(
    "Cannot judge a reply to a conversation: the tokenizer has no chat template. Set model.chat_template.",
    { part: "tokenizer", capability: "chat" },
  );
}

function stepOf(
  tokenizer: Tokenizer,
  { reply, prompt_ids }: { readonly reply: GivenReply; readonly prompt_ids: readonly number[] },
): Completion {
  const { text, hasEvaluator } = reply;
  return {
    prompt_ids,
    response_ids: hasEvaluator ? tokenizer.encode(text, { addSpecialTokens: false, continues: true }) : [],
    logprobs: [],
    model_response: text,
    finish_reason: "stop",
    reward: 0,
    done: false,
  };
}
