/**
 * Cumulative token mode: the gateway renders a session's prompts itself and sends workers token ids, so that a later turn
 * starts with the exact tokens of the earlier ones, sampled replies included. It needs the tokenizer of the workers' model.
 */
import { demandsOf } from "../../../chat/constraint.ts";
import {
  type CallSettings,
  type ChatTurn,
  type ChoiceCall,
  Conversation,
  choiceCall,
  type Reply,
} from "../../../chat/conversation.ts";
import { SharedAbort } from "../../../chat/ending.ts";
import type { ChatCall, ChatEngine, ChoiceStart } from "../../../chat/engine.ts";
import { ApiError, type SamplingRequest } from "../../../chat/request.ts";
import type { TextWork } from "../../../chat/text_work.ts";
import type { SampledSequence, SampleRequest } from "../../../engine/contract/backend.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { TraceRecord } from "../../../engine/contract/trace.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { eventsIn } from "./event_lines.ts";
import { Gathered } from "./gathered.ts";
import { brokenOff, type WorkerAnswer } from "./send.ts";
import { errorIn, workerError } from "./worker_error.ts";

export interface CumulativeOptions {
  /** Model as requests name it. */
  readonly model: string | undefined;
  /** Tokenizer of the workers' model, with its chat template. */
  readonly tokenizer: Tokenizer;
  /** Shared by all sessions. */
  readonly texts?: TextWork | undefined;
  /** The session's earlier calls, oldest first. */
  readonly history: readonly TraceRecord[];
  /** Sends a body to `/v1/completions`. */
  readonly ask: (body: JsonBody, signal: AbortSignal | undefined) => Promise<WorkerAnswer>;
  /** Version of the workers' weights, where answers do not say. */
  readonly weightVersion: () => number | null;
}

interface Settings extends CallSettings {
  readonly params: SamplingRequest["params"];
  readonly seed: number | undefined;
}

/** Stands for a version that nobody knows, in a field that takes numbers alone. */
const UNKNOWN_VERSION = -1;

/** An engine for one session. Constrained replies are refused: the worker would have to keep the grammar. */
export function cumulativeEngine(options: CumulativeOptions): ChatEngine {
  const { model, tokenizer, texts, history } = options;
  const conversation = new Conversation<Settings>({
    tokenizer,
    texts,
    // Clients put calls of several conversations into one, so their ids must differ.
    toolCallPrefix: `call_${crypto.randomUUID().slice(0, 8)}`,
    plan: ({ settings: { params, seed = 0 } }) => ({ params: { ...OPEN, ...params }, seed }),
    draw: (request, settings) => draw(request, { ...options, settings }),
  });
  conversation.restore(history);
  const each = <T extends Reply>(
    request: SamplingRequest,
    call: ChatCall | undefined,
    run: (settings: Settings) => Promise<T>,
  ) => {
    const demands = demandsOf(request, { tokenizer, isConstrainable: false });
    const { params, stop, seed } = request;
    const settings = Array.from({ length: request.n }, (_, i) => {
      const choiceSeed = seed === undefined ? undefined : seed + i;
      return { params, stop, seed: choiceSeed, demands, sampling: knownCall(choiceCall(call, i)) };
    });
    return together(settings, { run, signal: call?.signal });
  };
  return {
    model: model ?? "",
    tokenizer,
    chat: async (request, call) => {
      const { messages, tools, variables } = request;
      return each(request, call, (settings) => conversation.chat(messages, { tools, variables, settings }));
    },
    complete: async (request, call) =>
      each(request, call, (settings) => conversation.complete(request.prompt, settings)),
  };
}

/** Parameters that are not sent, because what a request leaves open is the worker's choice. */
const OPEN: SampleRequest["params"] = { max_tokens: 0, temperature: 1, top_p: 1, top_k: 0, stop_token_ids: [] };

/** All choices, or the first failure, which ends the others because nobody gets them. */
async function together<T extends Reply>(
  settings: readonly Settings[],
  { run, signal }: { run: (settings: Settings) => Promise<T>; signal: AbortSignal | undefined },
): Promise<T[]> {
  const ending = new SharedAbort(signal);
  try {
    const drawn = settings.map((choice) =>
      run({ ...choice, sampling: { ...choice.sampling, signal: ending.signal() } }),
    );
    return (await Promise.all(drawn)).map(withoutUnknown);
  } catch (error) {
    ending.abort(error);
    throw error;
  } finally {
    ending.leave();
  }
}

/** Listeners that hear what is known. */
function knownCall(call: ChoiceCall): ChoiceCall {
  const { onStart, onReply } = call;
  return {
    ...call,
    ...(onStart && { onStart: ({ sampling_params: _, ...start }: ChoiceStart) => onStart(start) }),
    ...(onReply && { onReply: (reply: Reply | ChatTurn) => onReply(withoutUnknown(reply)) }),
  };
}

/**
 * Returns a reply without what is the worker's choice, which nobody reports: the settings that a request left open, at
 * times the version.
 */
function withoutUnknown<T extends Reply>(reply: T): T {
  const { sampling_params: _, weight_version, ...rest } = reply;
  return { ...rest, ...(weight_version !== UNKNOWN_VERSION && { weight_version }) } as T;
}

interface Drawing extends CumulativeOptions {
  readonly settings: Settings;
}

async function draw(request: SampleRequest, drawing: Drawing): Promise<SampledSequence> {
  const signal = drawing.settings.sampling?.signal;
  const { worker, response } = await drawing.ask(bodyOf(request, drawing), signal);
  try {
    if (!response.ok || !response.body) throw await workerError(response);
    const sampled = new Gathered();
    const tokens: number[] = [];
    const logprobs: number[] = [];
    let isEnded = false;
    for await (const event of eventsIn(response.body)) {
      if (event.error) throw errorIn(event);
      sampled.add(event);
      const before = tokens.length;
      const newTokens = sampled.takeNew(0);
      isEnded = pushUpToEnd(tokens, { newTokens: newTokens.tokens, ends: request.ends });
      const added = tokens.length - before;
      logprobs.push(...newTokens.logprobs.slice(0, added));
      if (added > 0) request.onTokens?.(tokens.slice(before), newTokens.logprobs.slice(0, added));
      // Leaving the loop cancels the worker's stream.
      if (isEnded) break;
    }
    check(sampled, { request, count: tokens.length, isEnded });
    if (!isEnded && !sampled.isWhole) throw brokenOff(worker);
    const [choice] = sampled.choices();
    return {
      tokens,
      logprobs,
      finish_reason: !isEnded && choice?.finish_reason === "length" ? "length" : "stop",
      weight_version: sampled.weightVersion ?? drawing.weightVersion() ?? UNKNOWN_VERSION,
    };
  } catch (error) {
    signal?.throwIfAborted();
    throw error instanceof ApiError ? error : brokenOff(worker, error);
  } finally {
    worker.release();
  }
}

function bodyOf({ prompt_ids, params }: SampleRequest, { model, tokenizer, settings }: Drawing): JsonBody {
  return {
    ...(model !== undefined && { model }),
    prompt: prompt_ids,
    // Completions have a small limit of their own; null lets a reply use the rest of the context.
    max_tokens: null,
    ...settings.params,
    ...(settings.seed !== undefined && { seed: settings.seed }),
    stop_token_ids: [...new Set([...tokenizer.eosTokenIds, ...params.stop_token_ids])],
    stream: true,
    logprobs: 1,
    return_token_ids: true,
  };
}

/**
 * Adds new tokens up to the one that ends the reply: a stop string, a single call of a tool, a caller that left. It copies
 * no earlier token, because a stream has an event for each.
 * @returns whether the reply has ended
 */
export function pushUpToEnd(
  tokens: number[],
  { newTokens, ends }: { readonly newTokens: readonly number[]; readonly ends: SampleRequest["ends"] },
): boolean {
  for (const token of newTokens) {
    tokens.push(token);
    if (ends?.(tokens)) return true;
  }
  return false;
}

/** @throws {ApiError} 502 for an answer whose tokens cannot be trained on */
function check(sampled: Gathered, context: { request: SampleRequest; count: number; isEnded: boolean }): void {
  const [choice] = sampled.choices();
  const { length } = choice?.tokens ?? [];
  if (
    choice &&
    !context.isEnded &&
    (choice.logprobs.length !== length || (length === 0 && sampled.counts(0).completion > 0))
  )
    throw unusable(`it reports ${length} token ids and ${choice.logprobs.length} log-probs`);
  if (sampled.promptIds.length > 0 && `${sampled.promptIds}` !== `${context.request.prompt_ids}`)
    throw unusable("it changed the prompt");
}

function unusable(why: string): ApiError {
  return new ApiError(
    `Cannot use the worker's reply in cumulative token mode: ${why}. Serve a vLLM that supports return_token_ids in completions, or leave out --tokenizer.`,
    { status: 502, type: "server_error", code: "worker_failed" },
  );
}
