/** Divides a printed Python error into the exceptions of each process that it went through. */
import type { Worker } from "./contract.ts";

/** One exception, as one process raised it. */
export interface TracebackSection {
  readonly worker: Worker | undefined;
  /** Frames and the exception; `The above exception was ...` at the start if it follows from the section before. */
  readonly lines: string[];
  /** The exception with its text; lines of an error of Ray name the process in it. */
  message: string;
}

/** `ray::TaskRunner.run() (pid=812, ip=10.0.0.7, actor_id=...)`, alone or after the name of Ray's error. */
const RAY_CALL = /\bray::(.*?)\(\) \(pid=(\d+)(?:, ip=([^\s,)]+))?/;
export const CHAIN = /^(The above exception was the direct cause of|During handling of the above exception, another)/;
export const TRACEBACK_START = /^\s*Traceback \(most recent call last\):$/;
/** Lines of frames; the exception after them begins without a space. */
export const INDENTED = /^\s/;
/** Markers under an expression. Ray leaves out its own frames, but not their markers. */
const MARKERS = /^\s+[\^~][\s^~]*$/;

/**
 * Returns the sections in the order of the text: the outermost process first. There is always one. @param worker who
 * printed it
 */
export function sectionsOf(lines: readonly string[], worker: Worker | undefined): TracebackSection[] {
  const sections: TracebackSection[] = [{ worker, lines: [], message: "" }];
  for (const line of lines) {
    const current = sections.at(-1)!;
    const call = RAY_CALL.exec(line);
    const chain = call || TRACEBACK_START.test(line) ? trailing(current) : [];
    if (call) sections.push({ worker: workerOf(call), lines: chain, message: "" });
    else if (chain.length > 0) sections.push({ worker: current.worker, lines: [...chain, line], message: "" });
    else if (CHAIN.test(line)) current.lines.push(line);
    else add(current, line);
  }
  const found = sections.filter(({ message }) => message !== "");
  const kept = found.length > 0 ? found : sections.slice(-1);
  for (const section of kept) trimEnd(section.lines);
  return kept;
}

function add(section: TracebackSection, line: string): void {
  const before = section.lines.at(-1) ?? "";
  if (MARKERS.test(line) && !/^ {4}/.test(before)) return;
  if (MARKERS.test(line) && MARKERS.test(before)) return;
  section.lines.push(line);
  const isFrame = TRACEBACK_START.test(line) || INDENTED.test(line);
  if (line !== "" && (!isFrame || section.message !== ""))
    section.message += section.message === "" ? line : `\n${line}`;
}

/** Takes the line `The above exception ...` from the end of a section, for the one that follows from it; none without it. */
function trailing({ lines }: TracebackSection): string[] {
  trimEnd(lines);
  const line = CHAIN.test(lines.at(-1) ?? "") ? lines.pop() : undefined;
  trimEnd(lines);
  return line === undefined ? [] : ["", line, ""];
}

function trimEnd(lines: string[]): void {
  while (lines.at(-1) === "") lines.pop();
}

/** `TaskRunner.run` is a method of an actor, `task` a function. */
function workerOf([, call = "", pid, ip]: RegExpExecArray): Worker {
  const name = call.includes(".") ? call.slice(0, call.lastIndexOf(".")) : call;
  return { name, pid: Number(pid), ip };
}
