/** A run's progress for people: one line that is redrawn on a terminal, plain lines elsewhere. */
import { clockDuration, shortNumber, sparkline } from "../format.ts";
import type { Logger, LogRecord, Moment } from "../logger.ts";
import { meanReward } from "../mean_reward.ts";
import { processScreen, type Screen } from "../terminal.ts";

type Metrics = LogRecord["metrics"];

const BAR_WIDTH = 18;
/** Below this width the bar is half as long. */
const NARROW_COLUMNS = 80;
const SPARKLINE_WIDTH = 24;
/** Held-out metrics of supervised fine-tuning and of preference training. */
const SUPERVISED: ReadonlySet<string> = new Set([
  "val/loss",
  "val/perplexity",
  "val/mean_token_accuracy",
  "val/rewards/accuracies",
  "val/rewards/margins",
]);
/** Number of lines that warm-up prints without a terminal. */
const WARMUP_LINES = 5;

/** How often it looks whether a step has been silent for long. */
const TICK_MS = 1000;
/** A step of minutes says what it is at: without a terminal after this long in silence, in the first step earlier, on a terminal at once. */
const SILENT_MS = 30_000;
const FIRST_SILENT_MS = 3000;
const REDRAW_MS = 1500;
const COMPILES = "a GPU's first step compiles its kernels";

/**
 * Prints a run's progress to standard error, or to `screen`.
 * @example
 *     await train({ ...run, loggers: [new ConsoleLogger()] });
 */
export class ConsoleLogger implements Logger {
  readonly name = "console";
  private readonly screen: Screen;
  private readonly rewards: number[] = [];
  private accuracy: string | undefined;
  private started: { phase: string; at: number; step: number; firstSeconds: number } | undefined;
  private isDrawn = false;
  /** The note of the last step: it is printed when it changes. */
  private note: string | undefined;
  private moment: (Moment & { readonly since: number }) | undefined;
  private timer: ReturnType<typeof setInterval> | undefined;
  /** When something was said last. */
  private said = performance.now();
  private isFirst = true;

  constructor(screen: Screen = processScreen()) {
    this.screen = screen;
  }

  during(moment: Moment): void {
    const { moment: before } = this;
    const now = performance.now();
    if (before === undefined) this.said = now;
    const isSame = before !== undefined && before.phase === moment.phase && before.step === moment.step;
    this.moment = { ...moment, since: isSame ? before.since : now };
    if (this.timer !== undefined) return;
    this.timer = setInterval(() => this.breakSilence(), TICK_MS);
    // Node's: the process ends without it.
    (this.timer as { unref?(): void }).unref?.();
  }

  stopping(): void {
    this.line(
      "stopping: the step under way is finished or dropped, then a checkpoint is saved; press Ctrl-C again to stop at once",
    );
  }

  private breakSilence(): void {
    const { moment, isFirst } = this;
    const { isTerminal } = this.screen;
    const limit = isFirst ? FIRST_SILENT_MS : isTerminal ? REDRAW_MS : SILENT_MS;
    const now = performance.now();
    if (moment === undefined || now - this.said < limit) return;
    const { phase, step, totalSteps, doing, done, total, unit } = moment;
    const counted = total === undefined ? doing : `${doing} ${done} of ${total} ${unit}`;
    const facts = [counted, clockDuration((now - moment.since) / 1000), isFirst ? COMPILES : ""].filter(Boolean);
    if (isTerminal && !isFirst && phase === "train") this.draw(`train ${this.bar(step - 1, totalSteps)}`, facts);
    else
      this.line([phase === "val" ? `validation at step ${step}` : `step ${step}/${totalSteps}`, ...facts].join("  "));
    this.isFirst = false;
    this.said = now;
  }

  log(record: LogRecord): void {
    this.moment = undefined;
    this.isFirst = false;
    if (record.phase === "val") this.logValidation(record);
    else this.logProgress(record);
  }

  private logProgress(record: LogRecord): void {
    const now = performance.now();
    // The first step of a phase includes compilation: the remaining time is estimated from its end.
    if (this.started?.phase !== record.phase)
      this.started = {
        phase: record.phase,
        at: now,
        step: record.step,
        firstSeconds: record.metrics["time/step"] ?? 0,
      };
    const perStep = (now - this.started.at) / 1000 / Math.max(record.step - this.started.step, 1);
    const isLast = record.step === record.totalSteps;
    const left = isLast
      ? `in ${clockDuration((now - this.started.at) / 1000 + this.started.firstSeconds)}`
      : `eta ${record.step > this.started.step ? clockDuration(perStep * (record.totalSteps - record.step)) : "…"}`;
    if (record.phase === "warmup") this.logWarmup(record, left);
    else this.logStep(record, left);
  }

  private logWarmup({ step, totalSteps, metrics }: LogRecord, left: string): void {
    const facts = [`loss ${fixed(metrics["warmup/loss"])}`, speed(metrics)];
    if (this.screen.isTerminal) this.draw(`warm-up ${this.bar(step, totalSteps)}`, [left, ...facts]);
    else if (step % Math.ceil(totalSteps / WARMUP_LINES) === 0 || step === totalSteps)
      this.line([`warm-up ${step}/${totalSteps}`, ...facts, left].join("  "));
    if (step === totalSteps) this.keep();
  }

  private logStep({ step, totalSteps, metrics, episodes, note }: LogRecord, left: string): void {
    const reward = meanReward(metrics);
    if (reward !== undefined) this.rewards.push(reward);
    const loss = metrics["train/loss"];
    const aim = loss === undefined ? `reward ${fixed(reward)}` : `loss ${fixed(loss)}`;
    const facts = [
      failed(metrics["batch/rollouts_failed"], episodes?.length),
      named("margin", metrics["rewards/margins"]),
      named("prefers", metrics["rewards/accuracies"]),
      named("entropy", metrics["actor/entropy"] ?? metrics.entropy),
      named("kl", metrics["actor/ppo_kl"]),
      named("clip", metrics["actor/pg_clipfrac"]),
      named("len", metrics["response_length/mean"]),
      named("stale", metrics["async/staleness_mean"]),
      speed(metrics),
    ];
    if (!this.screen.isTerminal)
      this.line([`step ${step}/${totalSteps}`, aim, ...facts.filter(Boolean), left, note].filter(Boolean).join("  "));
    else {
      if (note !== undefined && note !== this.note) this.line(`step ${step}: ${note}`);
      this.note = note;
      const curve = this.screen.columns >= 100 ? this.paint(sparkline(this.rewards, SPARKLINE_WIDTH), "cyan") : "";
      const accuracy = this.accuracy ? `val ${this.accuracy}` : "";
      this.draw(`train ${this.bar(step, totalSteps)}`, [left, aim, curve, accuracy, ...facts]);
      if (step === totalSteps) this.keep();
    }
  }

  /** Rewards that only repeat the accuracy are left out. */
  private logValidation({ step, metrics, episodes }: LogRecord): void {
    const rates = Object.entries(metrics).filter(([name]) => /\/pass@\d+$/.test(name));
    const first = rates.filter(([name]) => name.endsWith("/pass@1"));
    this.accuracy = first.map(([, value]) => fixed(value)).join(" ");
    const rewards = Object.entries(metrics).filter(
      ([name, value]) =>
        (/^val\/reward\/.*\/mean$/.test(name) && !first.some(([, rate]) => fixed(rate) === fixed(value))) ||
        name.startsWith("val-core/") ||
        SUPERVISED.has(name),
    );
    const parts = [...rates, ...rewards].map(
      ([name, value]) => `${name.replace(/^val(-core)?\//, "")} ${this.paint(fixed(value), "bold")}`,
    );
    const head = `${this.paint("validation", "green")} at step ${step}`;
    const lost = failed(metrics["val/rollouts_failed"], episodes?.length);
    for (const text of folded([head, ...parts, lost].filter(Boolean), this.screen)) this.line(text);
  }

  /** Keeps the redrawn line; the next one starts below it. */
  private keep(): void {
    if (this.isDrawn) this.screen.err("\n");
    this.isDrawn = false;
  }

  warn(message: string): void {
    this.line(`warning: ${message}`);
  }

  finish(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    this.keep();
  }

  private line(text: string): void {
    this.screen.err(`${this.isDrawn ? "\r\x1b[2K" : ""}${text}\n`);
    this.isDrawn = false;
  }

  /** Draws as many facts as there is room for, the first ones first. */
  private draw(head: string, facts: readonly string[]): void {
    const room = this.screen.columns - 1;
    let text = head;
    for (const fact of facts.filter(Boolean)) {
      if (visibleLength(text) + 2 + visibleLength(fact) > room) break;
      text += `  ${fact}`;
    }
    this.screen.err(`\r\x1b[2K${cut(text, room)}`);
    this.isDrawn = true;
  }

  private bar(step: number, total: number): string {
    const width = this.screen.columns < NARROW_COLUMNS ? BAR_WIDTH / 2 : BAR_WIDTH;
    const full = Math.round((width * step) / Math.max(total, 1));
    const bar = this.paint("━".repeat(full), "cyan") + this.paint("─".repeat(width - full), "dim");
    return `${bar} ${String(step).padStart(String(total).length)}/${total}`;
  }

  private paint(text: string, style: keyof typeof STYLES): string {
    return this.screen.color ? `\x1b[${STYLES[style]}m${text}\x1b[0m` : text;
  }
}

const STYLES = { bold: 1, dim: 2, green: 32, cyan: 36 } as const;

function fixed(value: number | undefined): string {
  return value === undefined ? "-" : value.toFixed(3);
}

function named(name: string, value: number | undefined): string {
  return value === undefined ? "" : `${name} ${shortNumber(value)}`;
}

function failed(count: number | undefined, of: number | undefined): string {
  return count ? `failed ${count}/${of ?? "?"}` : "";
}

function speed(metrics: Metrics): string {
  const value = metrics["perf/throughput"];
  return value === undefined ? "" : `${shortNumber(value)} tok/s`;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours start with the escape character
const COLOR = /(\x1b\[\d+m)/;

function visibleLength(text: string): number {
  return text.split(COLOR).reduce((sum, part, i) => sum + (i % 2 === 1 ? 0 : part.length), 0);
}

/** Parts in lines that fit the terminal, the later lines indented; one line without a terminal. */
function folded(parts: readonly string[], { isTerminal, columns }: Screen): string[] {
  if (!isTerminal) return [parts.join("  ")];
  const lines: string[] = [];
  for (const part of parts) {
    const last = lines.at(-1);
    const joined = `${last}  ${part}`;
    if (last !== undefined && visibleLength(joined) < columns) lines[lines.length - 1] = joined;
    else lines.push(last === undefined ? part : `  ${part}`);
  }
  return lines;
}

/** Cuts a line to the terminal's width, not counting colours, so that it never wraps. */
function cut(text: string, columns: number): string {
  let left = columns;
  const parts = text.split(COLOR).map((part, i) => {
    if (i % 2 === 1) return part;
    const kept = part.slice(0, Math.max(left, 0));
    left -= part.length;
    return kept;
  });
  return parts.join("");
}
