/**
 * The error classes of this package, and what the operating system's errors mean. A leaf: every folder may import
 * it, it imports nothing. Messages say `Cannot <action>: <what is wrong> (<value>).`, then what to do.
 */

/** Origin of a configuration value or an input row. */
export interface Source {
  /** Dotted key (`rllm.rollout.n`) or field name. */
  readonly path?: string | undefined;
  readonly file?: string | undefined;
  /** 1-based. */
  readonly line?: number | undefined;
  /** Default: `data` for a file that holds no settings, `config` for a setting, `usage` where neither is named. */
  readonly kind?: InputKind;
}

/**
 * Part of the input that is wrong: the command line, a setting, a file that is read or written, or what a function of
 * the user's returned.
 */
export type InputKind = "usage" | "config" | "data" | "code";

/** The user's input (a configuration, a file, a row, an argument) breaks a rule. */
export class ConfigError extends Error {
  override readonly name: string = "ConfigError";
  readonly path: string | undefined;
  readonly file: string | undefined;
  readonly line: number | undefined;
  readonly kind: InputKind;
  constructor(message: string, source: Source = {}, options?: ErrorOptions) {
    super(withPlace(message, source), options);
    this.kind = source.kind ?? kindOf(source);
    this.path = source.path;
    this.file = source.file;
    this.line = source.line;
  }
}

/** Device memory does not suffice: the byte budget is used up, or the driver refuses an allocation. */
export class OutOfMemoryError extends ConfigError {
  override readonly name = "OutOfMemoryError";
  /** Name of the use that the memory was for. */
  readonly label: string;
  /** Size of the allocation that failed. */
  readonly bytes: number;
  constructor(message: string, of: { label: string; bytes: number }, options?: ErrorOptions) {
    super(message, { path: "memory_budget_bytes" }, options);
    this.label = of.label;
    this.bytes = of.bytes;
  }
}

/** A WGSL module did not compile, or a dispatch broke a WebGPU rule. */
export class ShaderError extends Error {
  override readonly name = "ShaderError";
  readonly kernel: string;
  readonly line: number | undefined;
  constructor(message: string, at: { kernel: string; line?: number | undefined }) {
    super(message);
    this.kernel = at.kernel;
    this.line = at.line;
  }
}

/** A part of the system cannot do what was asked of it. */
export class UnsupportedError extends Error {
  override readonly name = "UnsupportedError";
  readonly part: string;
  readonly capability: string;
  constructor(message: string, about: { part: string; capability: string }) {
    super(message);
    this.part = about.part;
    this.capability = about.capability;
  }
}

/** Another process (a server, the GPU's driver) failed or went away. */
export class RemoteError extends Error {
  override readonly name: string = "RemoteError";
  readonly status: number | undefined;
  readonly retryable: boolean;
  constructor(message: string, about: { status?: number | undefined; retryable: boolean }) {
    super(message);
    this.status = about.status;
    this.retryable = about.retryable;
  }
}

/** The GPU's driver gave the device up, with everything in its memory: after a reset, a watchdog, an update of the driver. */
export class DeviceLostError extends RemoteError {
  override readonly name = "DeviceLostError";
  /** The driver's words. */
  readonly why: string;
  constructor(why: string) {
    super(`Cannot continue: the GPU device was lost (${why}). Resume from the last checkpoint.`, { retryable: true });
    this.why = why;
  }
}

/** The place stands before the last full stop: `... Check the path (run.yaml:3, data.val_files).` */
function withPlace(message: string, { file, line, path }: Source): string {
  const where = [file && (line ? `${file}:${line}` : file), path].filter(Boolean).join(", ");
  return where ? message.replace(/[.?]?$/, (end) => ` (${where})${end}`) : message;
}

const HOLDS_SETTINGS = /\.(ya?ml|sh|args)$/;

function kindOf({ file, path }: Source): InputKind {
  if (file !== undefined && !HOLDS_SETTINGS.test(file)) return "data";
  return file !== undefined || path !== undefined ? "config" : "usage";
}

/** Causes and remedies by the operating system's error code. */
const SYSTEM_ERRORS: Readonly<Record<string, readonly [string, string]>> = {
  ENOSPC: ["the disk is full", "Free some space, or name another place"],
  EFBIG: ["the file would be larger than the system allows", "Raise the limit (ulimit -f), or name another place"],
  EDQUOT: ["the disk quota is used up", "Free some space, or name another place"],
  EROFS: ["the disk is read-only", "Name another place"],
  EACCES: ["this user may not", "Change its permissions, or name another place"],
  EPERM: ["the system does not permit it", "Change its permissions, or name another place"],
  ENOENT: ["there is no such file or folder", "Check the path"],
  ENOTDIR: ["a part of the path is a file, not a folder", "Check the path"],
  EISDIR: ["it is a folder, not a file", "Name a file"],
  EEXIST: ["a file of that name is in the way", "Move it, or name another place"],
  ENOTEMPTY: ["the folder is not empty", "Move it, or name another place"],
  ENAMETOOLONG: ["the name is too long", "Shorten it"],
  ELOOP: ["its links lead in a circle", "Check the path"],
  EMFILE: ["too many files are open", "Raise the limit (ulimit -n)"],
  ENFILE: ["too many files are open on this machine", "Close some programs"],
  EIO: ["the disk reports an error", "Check the disk, or name another place"],
  EBUSY: ["another program uses it", "End that program, or name another place"],
};

/** Codes that only files have: an error of a write to an open file names none. */
const OF_DISKS = /^(ENOSPC|EDQUOT|EFBIG|EROFS|EIO)$/;

/**
 * The operating system's error in our words, of kind `data`: what could not be done to which file, why, what to do.
 * Undefined for an error that is not the file system's.
 * @param act what was tried: `write the report`; default `use the file`
 */
export function fileError(
  cause: unknown,
  { act, file }: { act?: string; file?: string } = {},
): ConfigError | undefined {
  const { code = "", path } = (cause ?? {}) as { code?: string; path?: string };
  const advice = SYSTEM_ERRORS[code];
  const place = file ?? path;
  if (!advice || (typeof place !== "string" && !OF_DISKS.test(code))) return undefined;
  const message = `Cannot ${act ?? (place ? "use the file" : "write a file")}: ${advice[0]} (${code}). ${advice[1]}.`;
  return new ConfigError(message, { file: place, kind: "data" }, { cause });
}

/** The stack, and those of its causes. Errors of ours explain themselves. */
export function stackOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const text = error instanceof ConfigError ? error.message : (error.stack ?? String(error));
  return error.cause === undefined ? text : `${text}\ncaused by ${stackOf(error.cause)}`;
}
