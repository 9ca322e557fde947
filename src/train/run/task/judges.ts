/**
 * Rewards and evaluators in a thread of their own, with a time limit for each call (`task.judge_timeout`). A function that
 * never returns is stopped by ending its thread; other calls that were under way there are made again in the next one.
 */
import { Worker } from "node:worker_threads";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Task } from "../../data/types.ts";
import { type JudgeAnswer, type JudgeCall, type RegisteredJudge, type Request, toError } from "./judge_calls.ts";

/** Address of the worker beside this file, in the sources and in dist/. */
const WORKER = new URL(`./judge_worker${import.meta.url.slice(import.meta.url.lastIndexOf("."))}`, import.meta.url);

/** A thread that answers nothing for this long runs a function that does not yield. */
const PING_MS = 500;

const ENDED = "The thread that judges ended during the call: does the function call process.exit?";

interface Pending {
  readonly call: JudgeCall;
  readonly task: string;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
  timer?: ReturnType<typeof setTimeout> | undefined;
}

export interface JudgesOptions {
  /** Modules that register the functions. */
  readonly imports: readonly string[];
  readonly timeoutSeconds: number;
}

/** Threads of this process that may still hold it. */
const OPEN = new Set<Judges>();

/** Ends every thread, and the calls that nobody waits for any more: a command has ended. */
export function closeJudges(): void {
  for (const judges of OPEN) judges.close();
}

export class Judges {
  private readonly options: JudgesOptions;
  private readonly pending = new Map<number, Pending>();
  private worker: Worker | undefined;
  private pinging: ReturnType<typeof setTimeout> | undefined;
  private next = 0;

  constructor(options: JudgesOptions) {
    this.options = options;
  }

  close(): void {
    OPEN.delete(this);
    this.replace(() => new Error("The command has ended"));
  }

  /** The function of that name as one of this process: same arguments, which must be structured data. */
  // biome-ignore lint/suspicious/noExplicitAny: rewards and evaluators take different arguments
  wrap<F extends (...args: any[]) => unknown>(judge: RegisteredJudge, taskOf: (...args: Parameters<F>) => Task): F {
    const call = (...args: Parameters<F>) => this.call(judge, { args, task: taskOf(...args).id });
    return call as unknown as F;
  }

  /** @throws what the function throws; {ConfigError} when it takes too long or its arguments cannot be sent. */
  private call(judge: RegisteredJudge, parts: { args: readonly unknown[]; task: string }): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const call = { id: this.next++, judge, args: parts.args };
      this.pending.set(call.id, { call, task: parts.task, resolve, reject });
      this.send(call);
    });
  }

  private send(call: JudgeCall): void {
    try {
      this.thread().postMessage({ call } satisfies Request);
    } catch (cause) {
      const { name, kind } = call.judge;
      const message = `Cannot send the arguments of the ${kind} "${name}" to its thread: ${(cause as Error).message}. Use structured data, or set task.judge_timeout=null.`;
      this.settle(call.id)?.reject(new ConfigError(message, { kind: "code", path: "task.judge_timeout" }));
    }
  }

  private thread(): Worker {
    this.worker ??= this.start();
    // It holds the process while calls wait for it.
    this.worker.ref();
    return this.worker;
  }

  private start(): Worker {
    OPEN.add(this);
    const worker = new Worker(WORKER, { name: "judges", workerData: this.options.imports });
    let hasBegun = false;
    worker.on("message", (answer: JudgeAnswer) => {
      hasBegun = true;
      if (worker === this.worker) this.hear(answer);
    });
    // A thread that ends before its first call would end so each time.
    worker.on("error", (error) => {
      if (worker !== this.worker) return;
      if (hasBegun) this.fail(error);
      else this.replace(() => unusable(error));
    });
    worker.on("exit", () => {
      if (worker !== this.worker) return;
      this.replace(({ timer }) => (timer ? new Error(ENDED) : hasBegun ? undefined : unusable(new Error(ENDED))));
    });
    return worker;
  }

  /** An error that nothing in the thread caught: any of the calls under way may have made it, or one that has returned. */
  private fail(error: unknown): void {
    const isUnderWay = [...this.pending.values()].some(({ timer }) => timer !== undefined);
    this.replace(({ timer }) => (timer ? error : undefined));
    if (isUnderWay) return;
    // Uncaught in this process too, because no call is left to carry it.
    throw error;
  }

  private hear(answer: JudgeAnswer): void {
    if ("begun" in answer) this.startTimer(answer.begun);
    else if ("pong" in answer) clearTimeout(this.pinging);
    else if ("unusable" in answer) this.replace(() => unusable(answer.unusable));
    else if ("failure" in answer) this.settle(answer.ended)?.reject(toError(answer.failure));
    else this.settle(answer.ended)?.resolve(answer.value);
  }

  /** The call, out of those that are waited for. */
  private settle(id: number): Pending | undefined {
    const pending = this.pending.get(id);
    clearTimeout(pending?.timer);
    this.pending.delete(id);
    if (this.pending.size === 0) this.worker?.unref();
    return pending;
  }

  private startTimer(id: number): void {
    const pending = this.pending.get(id);
    if (pending) pending.timer = setTimeout(() => this.expire(pending), this.options.timeoutSeconds * 1000);
  }

  private expire({ call, task }: Pending): void {
    this.settle(call.id)?.reject(this.expired(call.judge, task));
    const { worker } = this;
    clearTimeout(this.pinging);
    this.pinging = setTimeout(() => {
      if (worker === this.worker) this.replace(() => undefined);
    }, PING_MS);
    worker?.postMessage({ ping: call.id } satisfies Request);
  }

  private expired({ kind, name }: RegisteredJudge, task: string): ConfigError {
    const what = kind === "environment" ? `reward of the environment "${name}"` : `${kind} "${name}"`;
    return new ConfigError(
      `Cannot judge the task ${task}: the ${what} did not return within task.judge_timeout=${this.options.timeoutSeconds} s and was stopped. Correct the function, or raise the limit.`,
      { kind: "code" },
    );
  }

  /** Ends the thread. Calls with an error fail; the others are made again. */
  private replace(errorFor: (pending: Pending) => unknown): void {
    const { worker } = this;
    this.worker = undefined;
    clearTimeout(this.pinging);
    void worker?.terminate().catch(() => {});
    for (const pending of [...this.pending.values()]) {
      const error = errorFor(pending);
      clearTimeout(pending.timer);
      pending.timer = undefined;
      if (error === undefined) this.send(pending.call);
      else this.settle(pending.call.id)?.reject(error);
    }
  }
}

function unusable({ message }: { readonly message: string }): ConfigError {
  return new ConfigError(
    `Cannot judge in a thread: the modules of --import cannot be used there: ${message.replace(/\.$/, "")}. Set task.judge_timeout=null to judge in this process.`,
    { kind: "code" },
  );
}
