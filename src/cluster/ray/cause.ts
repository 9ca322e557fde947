/** Finds why a job failed: the traceback of the process that raised first, among those of everyone who waited for it. */
import type { LogLine, Worker } from "./contract.ts";
import { CHAIN, INDENTED, sectionsOf, TRACEBACK_START, type TracebackSection } from "./sections.ts";

export interface Cause {
  /** Process that raised it; absent for the driver. */
  readonly worker?: Worker | undefined;
  /** The traceback without Ray's wrapping, with the exceptions that led to it. */
  readonly lines: readonly string[];
  /** `ValueError: bad reward`, with the further lines of its message. */
  readonly message: string;
}

/** Tracebacks that one process printed without a pause. */
interface Block {
  /** How many began before it. */
  readonly place: number;
  readonly worker: Worker | undefined;
  readonly lines: string[];
  state: "frames" | "message" | "chained";
  /** Lines of the exception's message after its first. */
  more: number;
}

const RAY_START = /\bray::\S+ \(pid=\d/;
/** Printed when a process ends: of no consequence. */
const IGNORED = /^Exception ignored in/;
/** A line that begins like this is no further line of an exception's message. */
const LOG_LINE =
  /^(\d{4}-\d\d-\d\d|\d\d:\d\d|\[|\(|\w*(INFO|WARNING|ERROR|DEBUG)\b|step:\d|Set the environment variable )/;

const MOST_MESSAGE_LINES = 10;
const MOST_LINES = 200;
const MOST_OF_A_LINE = 1_000;
/** Most blocks of each end of the job's life. */
const MOST_BLOCKS = 32;

/** Errors that follow from another process's failure. */
const CONSEQUENCE =
  /(ActorDiedError|ActorUnavailableError|RayActorError|WorkerCrashedError|EngineDeadError|DistBackendError|NCCL|Connection (reset|closed) by peer|BrokenPipeError)/;

/** Takes a job's lines while they arrive; keeps tracebacks alone, and of those the first and the last. */
export class CauseFinder {
  private readonly open = new Map<string, Block>();
  private readonly ignoring = new Set<string>();
  private readonly first: Block[] = [];
  private readonly last: Block[] = [];
  private count = 0;

  take({ text, worker }: LogLine): void {
    const key = worker ? `${worker.pid} ${worker.ip ?? ""}` : "driver";
    const line = text.slice(0, MOST_OF_A_LINE).trimEnd();
    const block = this.open.get(key);
    if (block && continues(block, line)) return;
    if (block) this.close(key, block);
    const isIgnored = this.ignoring.delete(key);
    if (IGNORED.test(line)) this.ignoring.add(key);
    const isStart = TRACEBACK_START.test(line) || RAY_START.test(line);
    if (!isStart || isIgnored) return;
    this.open.set(key, { place: this.count++, worker, lines: [line], state: "frames", more: 0 });
  }

  /** Returns the cause of the job's failure, as far as its log shows it; undefined where nobody printed a traceback. */
  cause(): Cause | undefined {
    for (const [key, block] of this.open) this.close(key, block);
    // The traceback of a process that prints nothing more is closed here, after those that began later.
    const blocks = [...this.first, ...this.last].sort((a, b) => a.place - b.place);
    const ofDriver = blocks.findLast(({ worker }) => !worker);
    const ofWorkers = blocks.filter(({ worker }) => worker);
    const end = ofDriver ? causeIn(ofDriver) : undefined;
    if (end && !CONSEQUENCE.test(end.message)) return end;
    return earlier(end, ofWorkers.map(causeIn)) ?? end;
  }

  private close(key: string, block: Block): void {
    this.open.delete(key);
    if (this.first.length < MOST_BLOCKS) this.first.push(block);
    else {
      this.last.push(block);
      if (this.last.length > MOST_BLOCKS) this.last.shift();
    }
  }
}

/** Adds the line to the block, if it belongs there. */
function continues(block: Block, line: string): boolean {
  const belongs = block.state === "message" ? followsMessage(block, line) : followsFrames(block, line);
  if (!belongs) return false;
  block.lines.push(line);
  // The first lines name the process, the last the exception.
  if (block.lines.length > MOST_LINES) block.lines.splice(MOST_LINES / 2, 1);
  return true;
}

function followsFrames(block: Block, line: string): boolean {
  if (INDENTED.test(line) || RAY_START.test(line) || TRACEBACK_START.test(line)) block.state = "frames";
  else if (line !== "" || block.state !== "chained") Object.assign(block, { state: "message", more: 0 });
  return true;
}

function followsMessage(block: Block, line: string): boolean {
  if (CHAIN.test(line)) block.state = "chained";
  else if (RAY_START.test(line) || /^\s+File "/.test(line)) block.state = "frames";
  else if (TRACEBACK_START.test(line) || IGNORED.test(line) || LOG_LINE.test(line) || block.more >= MOST_MESSAGE_LINES)
    return false;
  else block.more++;
  return true;
}

/** The innermost process of a block, and every exception in it that led to the last. */
function causeIn({ worker, lines }: Block): Cause {
  const sections = sectionsOf(lines, worker);
  const last = sections.at(-1)!;
  const isSame = (section: TracebackSection) => section.worker?.pid === last.worker?.pid;
  const current = sections.slice(sections.findLastIndex((section) => !isSame(section)) + 1);
  return { worker: last.worker, lines: current.flatMap((section) => section.lines), message: last.message };
}

/** The cause behind a failure that only follows from another process's: of the process it names, else the first at all. */
function earlier(end: Cause | undefined, ofWorkers: readonly Cause[]): Cause | undefined {
  const pid = /^\s*pid: (\d+)$/m.exec(end?.message ?? "")?.[1] ?? end?.worker?.pid;
  const causes = ofWorkers.filter(({ message }) => !CONSEQUENCE.test(message));
  return causes.findLast(({ worker }) => String(worker!.pid) === String(pid)) ?? causes[0];
}
