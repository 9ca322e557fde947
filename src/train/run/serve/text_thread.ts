/** A thread that renders and encodes long prompts, one at a time, each within a time and a memory limit. */
import { Worker } from "node:worker_threads";
import type { TextThread, ThreadChat, ThreadText } from "../../../chat/text_work.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import type { TextAnswer, TextFailure, TextQuestion, TextWorkerData } from "./text_questions.ts";

/** Address of the worker beside this file, in the sources and in dist/. */
const WORKER = new URL(`./text_worker${import.meta.url.slice(import.meta.url.lastIndexOf("."))}`, import.meta.url);

/** Time limit of one text, the start of the thread apart. */
const MOST_MS = 30_000;
const MOST_MIB = 2048;

interface Job {
  readonly question: TextQuestion;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (value: never) => void;
  readonly reject: (error: unknown) => void;
}

export interface TextThreadOptions {
  readonly mostMs?: number;
  readonly mostMib?: number;
  /** The compiled thread. Default: beside this file. */
  readonly script?: URL;
}

/** Starts with the first long prompt; a process without one pays nothing but the tokenizer's files. */
export function openTextThread(tokenizer: TextTokenizer, options: TextThreadOptions = {}): TextThread {
  return new Thread(tokenizer, options);
}

class Thread implements TextThread {
  private readonly data: TextWorkerData;
  private readonly mostMs: number;
  private readonly mostMib: number;
  private readonly script: URL;
  private readonly waiting: Job[] = [];
  private running: Job | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private worker: Worker | undefined;

  constructor(tokenizer: TextTokenizer, { mostMs = MOST_MS, mostMib = MOST_MIB, script = WORKER }: TextThreadOptions) {
    this.data = { files: tokenizer.files(), eosTokenIds: tokenizer.eosTokenIds };
    this.mostMs = mostMs;
    this.mostMib = mostMib;
    this.script = script;
  }

  formatChat(chat: ThreadChat, signal?: AbortSignal): Promise<string> {
    return this.asked({ chat }, signal);
  }

  async encode(encode: ThreadText, signal?: AbortSignal): Promise<readonly number[]> {
    return Array.from(await this.asked<Uint32Array>({ encode }, signal));
  }

  close(): void {
    const reason = new Error("Cannot read the prompt: the server is closing.");
    for (const { reject } of this.waiting.splice(0)) reject(reason);
    this.end(reason);
  }

  private asked<T>(question: TextQuestion, signal: AbortSignal | undefined): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.waiting.push({ question, signal, resolve, reject });
      this.next();
    });
  }

  private next(): void {
    if (this.running) return;
    const job = this.waiting.shift();
    if (!job) {
      this.worker?.unref();
      return;
    }
    if (job.signal?.aborted) {
      job.reject(job.signal.reason);
      this.next();
      return;
    }
    this.running = job;
    this.worker ??= this.start();
    this.worker.ref();
    this.worker.postMessage(job.question);
  }

  private start(): Worker {
    const worker = new Worker(this.script, {
      name: "texts",
      workerData: this.data,
      resourceLimits: { maxOldGenerationSizeMb: this.mostMib },
    });
    const isOurs = () => worker === this.worker;
    worker.on("message", (answer: TextAnswer) => {
      if (isOurs()) this.hear(answer);
    });
    worker.on("error", (error: NodeJS.ErrnoException) => {
      if (isOurs()) this.end(error.code === "ERR_WORKER_OUT_OF_MEMORY" ? tooMuch(`${this.mostMib} MiB`) : error);
    });
    worker.on("exit", () => {
      if (isOurs()) this.end(new Error("The thread that reads prompts ended."));
    });
    return worker;
  }

  private hear(answer: TextAnswer): void {
    if ("begun" in answer) {
      this.timer = setTimeout(() => this.end(tooMuch(`${this.mostMs / 1000} s`)), this.mostMs);
      return;
    }
    const job = this.settled();
    if ("failure" in answer) job?.reject(errorOf(answer.failure));
    else job?.resolve(answer.value as never);
    this.next();
  }

  private settled(): Job | undefined {
    clearTimeout(this.timer);
    const job = this.running;
    this.running = undefined;
    return job;
  }

  /** The thread is gone: what ran fails, what waits runs in another one. */
  private end(error: unknown): void {
    const { worker } = this;
    this.worker = undefined;
    void worker?.terminate().catch(() => {});
    this.settled()?.reject(error);
    this.next();
  }
}

/** The text's fault, and so the request's. */
function tooMuch(what: string): ConfigError {
  return new ConfigError(`Cannot read the prompt: it takes more than ${what} to render or to encode. Shorten it.`);
}

function errorOf({ name, message, stack, part, capability, file }: TextFailure): Error {
  if (name === "UnsupportedError") return new UnsupportedError(message, { part: part!, capability: capability! });
  if (name === "ConfigError" && !file) return new ConfigError(message);
  if (name === "ConfigError") return Object.assign(new ConfigError(message), { file: file });
  return Object.assign(new Error(message), { name, stack });
}
