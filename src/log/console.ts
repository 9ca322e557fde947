/** What a person sees while a run goes on: one line that is redrawn on a terminal, plain lines elsewhere. */
import { duration, shortNumber, sparkline } from "./format.ts";
import type { Logger, LogRecord } from "./logger.ts";

type Metrics = LogRecord["metrics"];

/** Where the lines go; `Io` of the CLI is one. */
export interface Screen {
  err(text: string): void;
  readonly isTerminal: boolean;
  readonly color: boolean;
  readonly columns: number;
}

const BAR_WIDTH = 18;
const SPARKLINE_WIDTH = 24;
/** Without a terminal, warm-up prints this many lines. */
const WARMUP_LINES = 5;

export class ConsoleLogger implements Logger {
  readonly name = "console";
  private readonly screen: Screen;
  private readonly rewards: number[] = [];
  private accuracy: string | undefined;
  private started: { phase: string; at: number; step: number } | undefined;
  private isDrawn = false;

  constructor(screen: Screen) {
    this.screen = screen;
  }

  log(record: LogRecord): void {
    if (record.phase === "val") this.logValidation(record);
    else this.logProgress(record);
  }

  private logProgress(record: LogRecord): void {
    const now = performance.now();
    // The first step of a phase pays for compilation: what remains is reckoned from its end.
    if (this.started?.phase !== record.phase)
      this.started = { phase: record.phase, at: now, step: record.step };
    const perStep = (now - this.started.at) / 1000 / Math.max(record.step - this.started.step, 1);
    const left =
      record.step > this.started.step ? duration(perStep * (record.totalSteps - record.step)) : "…";
    if (record.phase === "warmup") this.logWarmup(record, left);
    else this.logStep(record, left);
  }

  private logWarmup({ step, totalSteps, metrics }: LogRecord, left: string): void {
    const facts = `loss ${fixed(metrics["warmup/loss"])}  ${speed(metrics)}`;
    if (this.screen.isTerminal) this.draw(`warm-up ${this.bar(step, totalSteps)} ${facts}  eta ${left}`);
    else if (step % Math.ceil(totalSteps / WARMUP_LINES) === 0 || step === totalSteps)
      this.line(`warm-up ${step}/${totalSteps}  ${facts}  eta ${left}`);
    if (step === totalSteps) this.keep();
  }

  private logStep({ step, totalSteps, metrics }: LogRecord, left: string): void {
    const reward = meanReward(metrics);
    if (reward !== undefined) this.rewards.push(reward);
    const facts = [
      `reward ${fixed(reward)}`,
      ...(this.screen.isTerminal && this.screen.columns >= 100
        ? [this.paint(sparkline(this.rewards, SPARKLINE_WIDTH), "cyan")]
        : []),
      ...(this.screen.isTerminal && this.accuracy ? [`val ${this.accuracy}`] : []),
      named("entropy", metrics["actor/entropy"]),
      named("kl", metrics["actor/ppo_kl"]),
      named("clip", metrics["actor/pg_clipfrac"]),
      named("len", metrics["response_length/mean"]),
      speed(metrics),
    ].filter(Boolean);
    if (this.screen.isTerminal)
      this.draw(`train ${this.bar(step, totalSteps)} eta ${left}  ${facts.join("  ")}`);
    else this.line(`step ${step}/${totalSteps}  ${facts.join("  ")}  eta ${left}`);
  }

  private logValidation({ step, metrics }: LogRecord): void {
    const rates = Object.entries(metrics).filter(([name]) => name.endsWith("/pass@1"));
    this.accuracy = rates.map(([, value]) => fixed(value)).join(" ");
    const rewards = Object.entries(metrics).filter(([name]) => /^val\/reward\/.*\/mean$/.test(name));
    const parts = [...rates, ...rewards].map(
      ([name, value]) => `${name.slice(4)} ${this.paint(fixed(value), "bold")}`,
    );
    this.line(`${this.paint("validation", "green")} at step ${step}  ${parts.join("  ")}`);
  }

  /** The redrawn line stays, and what follows starts below it. */
  private keep(): void {
    if (this.isDrawn) this.screen.err("\n");
    this.isDrawn = false;
  }

  warn(message: string): void {
    this.line(`warning: ${message}`);
  }

  finish(): void {
    this.keep();
  }

  private line(text: string): void {
    this.screen.err(`${this.isDrawn ? "\r\x1b[2K" : ""}${text}\n`);
    this.isDrawn = false;
  }

  private draw(text: string): void {
    this.screen.err(`\r\x1b[2K${cut(text, this.screen.columns - 1)}`);
    this.isDrawn = true;
  }

  private bar(step: number, total: number): string {
    const full = Math.round((BAR_WIDTH * step) / Math.max(total, 1));
    const bar = this.paint("━".repeat(full), "cyan") + this.paint("─".repeat(BAR_WIDTH - full), "dim");
    return `${bar} ${String(step).padStart(String(total).length)}/${total}`;
  }

  private paint(text: string, style: keyof typeof STYLES): string {
    return this.screen.color ? `\x1b[${STYLES[style]}m${text}\x1b[0m` : text;
  }
}

const STYLES = { bold: 1, dim: 2, green: 32, cyan: 36 } as const;

/** Mean over the roles' mean rewards. */
export function meanReward(metrics: Metrics): number | undefined {
  const means = Object.entries(metrics).filter(([name]) => /^reward\/.*\/mean$/.test(name));
  if (means.length === 0) return undefined;
  return means.reduce((sum, [, value]) => sum + value, 0) / means.length;
}

function fixed(value: number | undefined): string {
  return value === undefined ? "-" : value.toFixed(3);
}

function named(name: string, value: number | undefined): string {
  return value === undefined ? "" : `${name} ${shortNumber(value)}`;
}

function speed(metrics: Metrics): string {
  const value = metrics["perf/throughput"];
  return value === undefined ? "" : `${shortNumber(value)} tok/s`;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours start with the escape character
const COLOR = /(\x1b\[\d+m)/;

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
