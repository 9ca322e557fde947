/**
 * Reads the log of Trinity-RFT line by line. Explorer and trainer each log `Step N: {'name': value}`, and a step is reported
 * once both have: its metrics joined, under verl's names.
 */
import { metricsToVerl } from "../convert/metrics.ts";
import type { LogLine } from "../ray/contract.ts";
import type { TrainerEvent, TrainerLog } from "../ray/trainer.ts";

type Values = Readonly<Record<string, number>>;

/** `ERROR 11-23 04:05:06 [trainer.py:160] text`: what its logger adds, on every line of a message. */
const PREFIX = /^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] /;
const NUMBER = /[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf)|True|False/.source;
const METRIC = new RegExp(`(?:'([^']+)'|"([^"]+)"): (${NUMBER})(?=, |\\}$)`, "g");

/** The metrics of a line such as `Step 3: {'a/b': 0.5, 'c': 2}`; undefined for another line. */
export function parseStep(text: string): { step: number; values: Values } | undefined {
  const [, step, rest] = /^Step (\d+): (\{.*\})$/.exec(text) ?? [];
  if (step === undefined) return undefined;
  const found = [...rest!.matchAll(METRIC)].map(([, single, double, value]) => [single ?? double!, numberOf(value!)]);
  return { step: Number(step), values: Object.fromEntries(found) as Values };
}

function numberOf(text: string): number {
  if (text === "True" || text === "False") return Number(text === "True");
  if (text.endsWith("nan")) return Number.NaN;
  if (text.endsWith("inf")) return text.startsWith("-") ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  return Number(text);
}

interface Half {
  readonly explorer: Record<string, number>;
  readonly trainer: Record<string, number>;
  hasExplorer: boolean;
  hasTrainer: boolean;
}

/** A step whose other half has not come waits for at most so many steps of the trainer. */
const MOST_WAITING = 64;

export class TrinityLog implements TrainerLog {
  lastSaved: TrainerLog["lastSaved"];
  /** Steps with a part of their metrics. */
  private readonly halves = new Map<number, Half>();
  /** The explorer has logged all steps up to this one. */
  private explored = 0;
  private trained = 0;
  /** The newest step that was reported. */
  private newest = 0;
  /** The training step of the explorer's weights. */
  private version: number | undefined;
  /** Validates: the result comes before the steps that are trained in the meantime. */
  private isEvaluating = false;
  private saving: number | undefined;
  private mode = "both";
  private root = "";
  /** Processes whose next error is that of a failed rollout. */
  private readonly failing = new Set<number>();

  plain(line: LogLine): LogLine {
    return { ...line, text: line.text.trimEnd().replace(PREFIX, "") };
  }

  read(line: LogLine): TrainerEvent[] {
    const { text, worker } = this.plain(line);
    const found = parseStep(text);
    if (found) return this.metrics(found, worker?.name ?? "");
    return this.readState(text) ?? this.readFailure(text, worker?.pid ?? 0);
  }

  /** The steps of which one half never came. */
  finish(): TrainerEvent[] {
    this.isEvaluating = false;
    this.explored = Number.POSITIVE_INFINITY;
    const saved = this.saved();
    return [...saved, ...this.take([...this.halves.keys()])];
  }

  private metrics({ step, values }: { step: number; values: Values }, worker: string): TrainerEvent[] {
    const entries = Object.entries(values);
    const validation = entries.filter(([name]) => EVALUATION.test(name));
    const rest = entries.filter(([name]) => !EVALUATION.test(name));
    this.version = values["rollout/model_version"] ?? this.version;
    if (validation.length > 0) this.isEvaluating = false;
    const events =
      validation.length > 0 ? [trainerEvent(this.weightsOf(step, validation), Object.fromEntries(validation))] : [];
    // The explorer's last line is for a step that may have been reported.
    if (rest.length === 0 || step <= this.newest) return events;
    const half = this.halves.get(step) ?? { explorer: {}, trainer: {}, hasExplorer: false, hasTrainer: false };
    this.halves.set(step, half);
    const isTrainer = worker === "Trainer";
    Object.assign(isTrainer ? half.trainer : half.explorer, Object.fromEntries(rest));
    if (!isTrainer) half.hasExplorer = true;
    else {
      half.hasTrainer = true;
      this.trained = step;
    }
    return [...events, ...this.complete()];
  }

  /** The explorer validates with the weights that its rollouts have, and loads those of its step afterwards. A benchmark loads them before. */
  private weightsOf(step: number, validation: readonly [string, number][]): number {
    const isBenchmark = validation.some(([name]) => name.startsWith("bench/"));
    return isBenchmark ? step : Math.max(0, this.version ?? step);
  }

  /** Steps that have both halves whole. The explorer writes several lines for a step, and its synchronisation ends them. */
  private complete(): TrainerEvent[] {
    const isDone = ([step, { hasTrainer, hasExplorer }]: [number, Half]) => {
      if (this.isEvaluating && step > this.trained - MOST_WAITING) return false;
      if (this.mode === "train") return hasTrainer;
      if (this.mode === "explore") return hasExplorer && step <= this.explored;
      const isPast = hasExplorer && step < this.trained;
      return hasTrainer && (step <= this.explored || isPast || step <= this.trained - MOST_WAITING);
    };
    return this.take([...this.halves].filter(isDone).map(([step]) => step));
  }

  private take(steps: readonly number[]): TrainerEvent[] {
    return steps
      .toSorted((a, b) => a - b)
      .map((step) => {
        const { explorer, trainer } = this.halves.get(step)!;
        this.halves.delete(step);
        this.newest = Math.max(this.newest, step);
        return trainerEvent(step, { ...explorer, ...trainer });
      });
  }

  private readState(text: string): TrainerEvent[] | undefined {
    const total = /^Total training steps: (\d+)$/.exec(text)?.[1];
    if (total !== undefined) return Number(total) > 0 ? [{ kind: "total", steps: Number(total) }] : [];
    const reached = /^Trinity reached step (\d+)$/.exec(text)?.[1];
    if (reached !== undefined) return [{ kind: "reached", step: Number(reached) }];
    const explored =
      /^Explorer (?:sync_weights at step (\d+) started\.|\(\S+\) shutdown successfully at step (\d+)\.)$/.exec(text);
    if (explored) {
      this.explored = Math.max(this.explored, Number(explored[1] ?? explored[2]));
      this.isEvaluating = false;
      return this.complete();
    }
    const version = /^Explorer sync_weights at step \d+ finished, model version = (-?\d+)\.$/.exec(text)?.[1];
    if (version !== undefined) this.version = Number(version);
    if (/^Evaluation at step \d+ started\.$/.test(text)) this.isEvaluating = true;
    const [, mode, root] = /^Trinity runs in mode (\w+), with checkpoints in (.*)$/.exec(text) ?? [];
    if (mode !== undefined) {
      this.mode = mode;
      this.root = root!.replace(/\/+$/, "");
      return [];
    }
    return this.readSave(text);
  }

  /** The trainer says when it begins to save. Its next line says that it has. */
  private readSave(text: string): TrainerEvent[] | undefined {
    const saving = /^Saving checkpoint at step (\d+)\.\.\.$/.exec(text)?.[1];
    if (saving !== undefined) {
      const before = this.saved();
      this.saving = Number(saving);
      return [...before, { kind: "saving", step: this.saving, folder: this.folder(this.saving) }];
    }
    const isNext = /^(Sample data for step \d+ started\.|> Trainer finished\.|Checkpoint at step \d+ saved\.)$/.test(
      text,
    );
    return isNext ? this.saved() : undefined;
  }

  private saved(): TrainerEvent[] {
    if (this.saving === undefined || this.saving === this.lastSaved?.step) return [];
    this.lastSaved = { step: this.saving, folder: this.folder(this.saving) };
    this.saving = undefined;
    return [{ kind: "saved", ...this.lastSaved }];
  }

  private folder(step: number): string {
    return `${this.root}/global_step_${step}`;
  }

  /** One that a runner logs and survives. The error is the first line at the margin after the traceback's frames. */
  private readFailure(text: string, pid: number): TrainerEvent[] {
    if (/^WorkflowRunner (single run|run task) error: /.test(text)) this.failing.add(pid);
    const message = /^((?:\w+\.)*\w*(?:Error|Exception|Timeout)\b.*)$/.exec(text)?.[1];
    if (message === undefined || !this.failing.delete(pid)) return [];
    return [{ kind: "failure", message }];
  }
}

const EVALUATION = /^(?:eval|bench)\//;

/** An event under verl's names. */
function trainerEvent(step: number, values: Values): TrainerEvent {
  const named = Object.entries(values).map(([name, value]) => [name.replace(/^bench\//, "eval/"), value]);
  const [row] = metricsToVerl(
    { explorer: [{ step, values: Object.fromEntries(named) }], trainer: [] },
    { syncInterval: 1 },
  );
  return { kind: "metrics", step, metrics: row!.values as Values };
}
