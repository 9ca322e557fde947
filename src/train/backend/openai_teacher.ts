/** A teacher behind OpenAI's completions API: the log-probs of an echoed prompt, as vLLM and SGLang report them. */
import { z } from "zod";
import type { PackedTokens } from "../../engine/contract/backend.ts";
import type { Teacher, TeacherOptions } from "../../engine/contract/teacher.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError, RemoteError } from "../../leaves/errors.ts";
import { readErrorText, readReplyJson } from "../../leaves/read_reply.ts";
import { inParallel } from "./tinker/parallel.ts";
import { refuseTemperature } from "./tinker/teacher.ts";

export interface OpenAiTeacherOptions {
  /** `http://HOST:8000/v1`. */
  readonly baseUrl: string;
  /** The server's name of the model. */
  readonly model: string;
  /** The server does not report one. Absent: its tokens are taken to be the student's. */
  readonly tokenizer?: Tokenizer | undefined;
  /** Sent as a bearer token and never shown. */
  readonly apiKey?: string | undefined;
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
  /** Requests in flight. Default 16. */
  readonly concurrency?: number | undefined;
  /** Before the first of four further attempts, ms; each later pause is twice as long. Default 500. */
  readonly pauseMs?: number | undefined;
}

const REPLY = z.object({
  choices: z
    .array(
      z.object({
        text: z.string(),
        logprobs: z.object({ token_logprobs: z.array(z.number().nullable()) }).nullish(),
      }),
    )
    .min(1),
});
type Choice = z.output<typeof REPLY>["choices"][number];

const CONCURRENCY = 16;
const MOST_ATTEMPTS = 5;
const PAUSE_MS = 500;

/** Scores at temperature 1. Prompts are sent as token ids, one request for each row. */
export class OpenAiTeacher implements Teacher {
  readonly name: string;
  readonly tokenizer: Tokenizer | undefined;
  readonly contextLength = Number.POSITIVE_INFINITY;
  private readonly options: OpenAiTeacherOptions;

  constructor(options: OpenAiTeacherOptions) {
    this.options = options;
    this.name = `${options.model} at ${options.baseUrl}`;
    this.tokenizer = options.tokenizer;
  }

  /** @throws {UnsupportedError} for another temperature than 1; {RemoteError} for a server that fails or does not echo */
  async logprobs({ tokens, offsets }: PackedTokens, { temperature, signal }: TeacherOptions): Promise<Float32Array> {
    refuseTemperature(temperature, this.name);
    const ranges = Array.from({ length: offsets.length - 1 }, (_, i) => [offsets[i]!, offsets[i + 1]!] as const);
    const joined = new Float32Array(tokens.length);
    await inParallel(ranges, {
      most: this.options.concurrency ?? CONCURRENCY,
      signal,
      map: async ([first, end], inner) => {
        if (end - first < 2) return;
        const { logprobs } = await this.echo([...tokens.subarray(first, end)], inner);
        joined.set(this.promptLogprobs(logprobs, end - first).slice(1), first + 1);
      },
    });
    return joined;
  }

  private promptLogprobs(logprobs: Choice["logprobs"], length: number): number[] {
    const found = logprobs?.token_logprobs.slice(0, length);
    if (found?.length === length && found.slice(1).every((each) => each !== null)) return found as number[];
    throw new RemoteError(
      `Cannot distil from ${this.name}: it returned ${found?.length ?? 0} log-probs for a prompt of ${length} tokens. Take a server that supports echo with logprobs, as vLLM does.`,
      { retryable: false },
    );
  }

  /** @throws {ConfigError} where the server reads another text in the student's tokens */
  async check(text: string, student: Tokenizer): Promise<void> {
    const ids = student.encode(text);
    const { text: echoed } = await this.echo(ids);
    const decoded = student.decode(ids, { skipSpecialTokens: true }).trim();
    if (echoed.includes(decoded)) return;
    throw new ConfigError(
      `Cannot distil from ${this.name}: its tokenizer is not the student's: it reads ${JSON.stringify(echoed.slice(0, 80))} where the student wrote ${JSON.stringify(decoded.slice(0, 80))}. Take a teacher with the student's tokenizer, or train on its texts with grpu sft.`,
      { path: "distillation.teacher_models.teacher_model.model_path" },
    );
  }

  /** Nothing is kept open. */
  close(): void {}

  private async echo(prompt: readonly number[], signal?: AbortSignal): Promise<Choice> {
    const { model } = this.options;
    const body = { model, prompt, max_tokens: 1, temperature: 1, echo: true, logprobs: 1 };
    const read = REPLY.safeParse(await this.post(body, signal));
    if (read.success) return read.data.choices[0]!;
    throw new RemoteError(
      `Cannot distil from ${this.name}: its reply is no completion (${z.prettifyError(read.error)}). Check the address.`,
      { retryable: false },
    );
  }

  /** Tries again after a failure of the network or the server, and when it is busy. */
  private async post(body: object, signal?: AbortSignal): Promise<unknown> {
    const { baseUrl, apiKey, fetch: ask = fetch, pauseMs = PAUSE_MS } = this.options;
    const headers = { "Content-Type": "application/json", ...(apiKey && { Authorization: `Bearer ${apiKey}` }) };
    const init = { method: "POST", headers, body: JSON.stringify(body), ...(signal && { signal }) };
    for (let tried = 1; ; tried++) {
      const reply = await ask(`${baseUrl.replace(/\/+$/, "")}/completions`, init).catch((error: unknown) => {
        signal?.throwIfAborted();
        return error as Error;
      });
      if (reply instanceof Response && reply.ok) return readReplyJson(reply);
      const isPassing = !(reply instanceof Response) || reply.status === 429 || reply.status >= 500;
      if (!isPassing || tried === MOST_ATTEMPTS) throw await this.failure(reply, tried);
      await new Promise((resolve) => setTimeout(resolve, pauseMs * 2 ** (tried - 1)));
      signal?.throwIfAborted();
    }
  }

  private async failure(reply: Response | Error, tried: number): Promise<RemoteError> {
    const isReply = reply instanceof Response;
    const why = isReply ? `HTTP ${reply.status}: ${(await readErrorText(reply)).slice(0, 300)}` : reply.message;
    return new RemoteError(
      `Cannot distil from ${this.name}: the server failed ${tried === 1 ? "" : `${tried} times `}(${why}). Check the server, then resume the run.`,
      { status: isReply ? reply.status : undefined, retryable: false },
    );
  }
}
