/** Reads the log of verl's trainer line by line: metrics, checkpoints, and the failures that it reports and survives. */
import type { LogLine } from "../ray/contract.ts";
import type { TrainerEvent, TrainerLog } from "../ray/trainer.ts";
import { verlCheckpointStep } from "./checkpoints.ts";

export type VerlEvent = TrainerEvent;

const NUMBER = /[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf)|True|False/.source;
const METRIC = new RegExp(`(?:^| - )(.+?):(?:np\\.\\w+\\()?(${NUMBER})\\)?(?= - |$)`, "g");

/**
 * The metrics of a console line such as `step:3 - a/b:np.float64(0.5) - c:1.25`; undefined for another line.
 * NaN and infinities stay what they are.
 */
export function parseMetrics(line: string): { step: number; metrics: Record<string, number> } | undefined {
  const found = /^step:(\d+)(?: - (.*))?$/.exec(line);
  if (!found) return undefined;
  const [, step, rest = ""] = found;
  const metrics = [...rest.matchAll(METRIC)].map(([, name, value]) => [name!, numberOf(value!)] as const);
  return { step: Number(step), metrics: Object.fromEntries(metrics) };
}

function numberOf(text: string): number {
  if (text === "True" || text === "False") return Number(text === "True");
  if (text.endsWith("inf")) return text.startsWith("-") ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  // `nan` is NaN for Number() too.
  return Number(text);
}

const RECORD = "GRPU_METRICS ";

/** A record of verl's metrics file, as `verl_metrics.py` prints it; undefined for another line, and for a damaged one. */
function parseRecord(line: string): { step: number; metrics: Record<string, number> } | undefined {
  if (!line.startsWith(RECORD)) return undefined;
  try {
    const { step, data } = JSON.parse(line.slice(RECORD.length)) as { step: number; data: Record<string, unknown> };
    const numbers = Object.entries(data).filter((entry): entry is [string, number] => typeof entry[1] === "number");
    return { step, metrics: Object.fromEntries(numbers) };
  } catch {
    return undefined;
  }
}

const ERROR_LINE = /^((?:\w+\.)*\w*(?:Error|Exception|Timeout|Interrupt))(?:: ?(.*))?$/;

/** Follows one job. Give it every line once and in order; it keeps what later lines refer to. */
export class VerlLog implements TrainerLog {
  /** The newest complete checkpoint. */
  lastSaved: { readonly step: number; readonly folder: string } | undefined;
  private saving: { readonly step: number; readonly folder: string } | undefined;
  /** The newest step with metrics. */
  private newest = -1;
  private rows: number | undefined;
  /** Processes whose next error line ends the report of a failed rollout. */
  private readonly failing = new Set<number>();
  /** Processes in the middle of a traceback. */
  private readonly raising = new Set<number>();
  private firstError: string | undefined;

  /** Returns the events that a line reports; most lines report none. */
  read({ text, worker }: LogLine): VerlEvent[] {
    const line = text.trim();
    const metrics = parseMetrics(line) ?? this.missed(line);
    if (metrics) {
      this.newest = metrics.step;
      return [...this.finishSave(metrics), { kind: "metrics", ...metrics }];
    }
    return this.readState(line) ?? this.readError(line, worker?.pid ?? 0);
  }

  /** A step of the metrics file whose line never came. */
  private missed(line: string): ReturnType<typeof parseMetrics> {
    const record = parseRecord(line);
    return record && record.step > this.newest ? record : undefined;
  }

  /** The error that ended the run, with what to do where it is a usual one; undefined when the log has none. */
  cause(): string | undefined {
    return this.firstError && explainError(this.firstError);
  }

  private readState(line: string): VerlEvent[] | undefined {
    const total = /(?:^|[:\s])Total training steps: (\d+)$/.exec(line)?.[1];
    if (total !== undefined) return [{ kind: "total", steps: Number(total) }];
    const save = /(?:^local_global_step_folder: |:Saving checkpoint to )(\S.*)/.exec(line)?.[1];
    if (save !== undefined) return this.startSave(save);
    const resumed = /(?:^|:)Resuming from (\S+global_step_\d+)\/?(?:,.*)?$/.exec(line)?.[1];
    if (resumed !== undefined) return [{ kind: "resumed", step: verlCheckpointStep(resumed)!, folder: resumed }];
    return this.readRows(line);
  }

  private readRows(line: string): VerlEvent[] | undefined {
    const found = /^(filter )?dataset len: (\d+)$/.exec(line);
    if (!found) return undefined;
    const count = Number(found[2]);
    if (found[1] !== undefined) return [{ kind: "rows", all: this.rows ?? count, kept: count }];
    this.rows = count;
    return [];
  }

  private startSave(folder: string): VerlEvent[] {
    const step = verlCheckpointStep(folder);
    if (step === undefined) return [];
    this.saving = { step, folder };
    return [{ kind: "saving", step, folder }];
  }

  /** A step's metrics are printed after its checkpoint is written. */
  private finishSave({ step }: { step: number }): VerlEvent[] {
    if (this.saving === undefined || step < this.saving.step) return [];
    this.lastSaved = this.saving;
    this.saving = undefined;
    return [{ kind: "saved", ...this.lastSaved }];
  }

  private readError(line: string, pid: number): VerlEvent[] {
    if (/(?:^|:)Error in _run_prompt\b/.test(line)) this.failing.add(pid);
    if (line.startsWith("Traceback (most recent call last)")) this.raising.add(pid);
    const found = ERROR_LINE.exec(line);
    if (!found || !(this.raising.has(pid) || this.failing.has(pid))) return [];
    this.raising.delete(pid);
    const [, name = "", rest] = found;
    const message = rest ? `${name}: ${rest}` : name;
    if (this.failing.delete(pid)) return [{ kind: "failure", message }];
    this.firstError ??= message;
    return [];
  }
}

const ADVICE: readonly (readonly [RegExp, (found: RegExpExecArray) => string])[] = [
  [
    /Total available GPUs (\d+) is less than total desired GPUs (\d+)/,
    ([, has, wants]) =>
      `the cluster has ${has} GPUs and the run wants ${wants}. Set trainer.n_gpus_per_node and trainer.nnodes to what the cluster has, or add machines`,
  ],
  [
    /CUDA out of memory|OutOfMemoryError/i,
    () =>
      "a GPU has too little memory. Lower actor_rollout_ref.rollout.gpu_memory_utilization or actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu, or set actor_rollout_ref.actor.fsdp_config.param_offload=true",
  ],
  [
    /No module named '([\w.]+)'/,
    ([, name]) =>
      `the workers' Python has no ${name}. Install it in the cluster's image, or name it in the job's pip list`,
  ],
  [
    /(Could not override|Key) '([\w.]+)'/,
    ([, , key]) => `the cluster's verl has no setting ${key}. Choose the version of verl that the cluster has`,
  ],
  [
    /is not a local folder and is not a valid model identifier/,
    () => "the workers cannot load the model. Check actor_rollout_ref.model.path, and the workers' access to the hub",
  ],
];

/** An error of verl's with what to do about it; as it is where that is not known. */
export function explainError(message: string): string {
  for (const [pattern, advise] of ADVICE) {
    const found = pattern.exec(message);
    if (found) return `Cannot train on the cluster: ${advise(found)} (${message}).`;
  }
  return message;
}
