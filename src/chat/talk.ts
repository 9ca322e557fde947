/** One conversation with a model: what was said, under which settings. Knows nothing of terminals. */

import type { ChatMessage } from "../engine/contract/text.ts";
import { ConfigError } from "../leaves/errors.ts";
import type { ChatEngine, LivePart } from "./engine.ts";
import { chatLive } from "./live/live_reply.ts";
import { type ChatRequest, PLAIN_REQUEST, type SamplingRequest } from "./request.ts";

/** Settings that a person may change while they talk. Absent: the model's own. */
export type TalkSettings = Omit<SamplingRequest["params"], "stop_token_ids"> & { readonly seed?: number };

/** A reply that is whole or was stopped. */
export interface TalkReply {
  readonly tokens: number;
  readonly finish_reason: "stop" | "length" | "stopped";
  readonly ms: number;
}

/** Receiver of a reply that arrives piece by piece. */
export interface TalkListener {
  readonly signal: AbortSignal;
  readonly onPart: (part: LivePart) => void;
}

const RANGES: Readonly<Record<keyof TalkSettings, readonly [rule: string, accepts: (value: number) => boolean]>> = {
  temperature: ["a number from 0", (value) => value >= 0],
  top_p: ["a number above 0, at most 1", (value) => value > 0 && value <= 1],
  top_k: ["a whole number; 0 is all", (value) => Number.isInteger(value) && value >= -1],
  max_tokens: ["a whole number above 0", (value) => Number.isInteger(value) && value > 0],
  seed: ["a whole number from 0", (value) => Number.isInteger(value) && value >= 0 && value < 2 ** 32],
};

export class Talk {
  readonly engine: ChatEngine;
  system: string | undefined;
  settings: TalkSettings;
  private turns: ChatMessage[] = [];

  constructor(
    engine: ChatEngine,
    { system, settings = {} }: { system?: string | undefined; settings?: TalkSettings } = {},
  ) {
    this.engine = engine;
    this.system = system;
    this.settings = settings;
  }

  /** Returns the messages as the model reads them. */
  get messages(): readonly ChatMessage[] {
    return [...(this.system === undefined ? [] : [{ role: "system", content: this.system }]), ...this.turns];
  }

  /** Says something, and takes the reply into the conversation: a stopped one as far as it came. */
  async say(text: string, listener: TalkListener): Promise<TalkReply> {
    const before = this.turns;
    this.turns = [...before, { role: "user", content: text }];
    return this.reply(listener).catch((error) => {
      this.turns = before;
      throw error;
    });
  }

  /** Samples the last reply again. @throws {ConfigError} when nothing was said */
  retry(listener: TalkListener): Promise<TalkReply> {
    const last = this.turns.findLastIndex(({ role }) => role === "user");
    if (last < 0) throw new ConfigError("Cannot retry: nothing was said yet. Type a message.");
    const before = this.turns;
    this.turns = before.slice(0, last + 1);
    return this.reply(listener).catch((error) => {
      this.turns = before;
      throw error;
    });
  }

  reset(): void {
    this.turns = [];
  }

  /** `temperature=0.7 top_p=0.9`; a value of `default` is the model's own. @throws {ConfigError} and changes nothing */
  set(text: string): void {
    const next: Record<string, number | undefined> = { ...this.settings };
    for (const pair of text.split(/[\s,]+/).filter(Boolean)) {
      const [key = "", value = ""] = pair.split("=", 2);
      if (!Object.hasOwn(RANGES, key))
        throw new ConfigError(`Cannot set ${key}: there is no such setting. Known: ${Object.keys(RANGES).join(", ")}.`);
      const [rule, accepts] = RANGES[key as keyof TalkSettings];
      const read = value === "" ? Number.NaN : Number(value);
      if (value !== "default" && !accepts(read))
        throw new ConfigError(`Cannot set ${key}: it takes ${rule} (${value}).`);
      if (value === "default") delete next[key];
      else next[key] = read;
    }
    this.settings = next;
  }

  private async reply({ signal, onPart }: TalkListener): Promise<TalkReply> {
    const started = performance.now();
    const { seed, ...params } = this.settings;
    const request: ChatRequest = {
      ...PLAIN_REQUEST,
      messages: this.messages,
      params,
      ...(seed !== undefined && { seed }),
      stream: true,
    };
    let [tokens, content] = [0, ""];
    const end = (finish_reason: TalkReply["finish_reason"]) => ({
      tokens,
      finish_reason,
      ms: performance.now() - started,
    });
    try {
      const [drawn] = await chatLive(this.engine, request, {
        signal,
        onUpdate: (_, update) => {
          tokens += update.tokens.length;
          for (const part of update.parts) {
            if (part.type === "content") content += part.text;
            onPart(part);
          }
        },
      });
      this.turns.push(drawn!.message);
      return end(drawn!.finish_reason);
    } catch (error) {
      if (!signal.aborted) throw error;
      this.turns.push({ role: "assistant", content });
      return end("stopped");
    }
  }
}
