/**
 * The four error classes of this package. A leaf: every folder may import it, it imports nothing.
 * Messages say `Cannot <action> as <rule>: <value>`, then what to do.
 */

/** Where a configuration value or an input row came from. */
export interface Source {
  /** Dotted key (`rllm.rollout.n`) or field name. */
  readonly path?: string;
  readonly file?: string;
  /** 1-based. */
  readonly line?: number;
}

/** The user's input (a configuration, a file, a row, an argument) breaks a rule. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
  readonly path: string | undefined;
  readonly file: string | undefined;
  readonly line: number | undefined;
  constructor(message: string, source: Source = {}) {
    super(message + place(source));
    this.path = source.path;
    this.file = source.file;
    this.line = source.line;
  }
}

/** A WGSL module did not compile, or a dispatch broke a WebGPU rule. */
export class ShaderError extends Error {
  override readonly name = "ShaderError";
  readonly kernel: string;
  readonly line: number | undefined;
  constructor(message: string, at: { kernel: string; line?: number }) {
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
  override readonly name = "RemoteError";
  readonly status: number | undefined;
  readonly retryable: boolean;
  constructor(message: string, about: { status?: number; retryable: boolean }) {
    super(message);
    this.status = about.status;
    this.retryable = about.retryable;
  }
}

function place({ file, line, path }: Source): string {
  const where = [file && (line ? `${file}:${line}` : file), path].filter(Boolean).join(", ");
  return where ? ` (${where})` : "";
}
