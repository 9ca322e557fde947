/** The key that clients of a server send: where it comes from, and how to show it without revealing it. */
import type { Stats } from "node:fs";
import { ConfigError, fileError } from "../../leaves/errors.ts";
import { isLoopback } from "../../leaves/http/origin.ts";
import type { Input, Io, Option } from "../command.ts";

export const KEY_OPTIONS: readonly Option[] = [
  {
    flag: "--api-key-file",
    value: "FILE",
    describe: "file with the key that clients must send; created with a new key if absent. Default: $GRPU_API_KEY",
  },
  {
    flag: "--api-key",
    value: "KEY",
    describe: "the key itself; the shell's history keeps it",
  },
];

export interface ServerKey {
  /** Absent: the server asks for none. */
  readonly value: string | undefined;
  /** A shell expression for the key; the key itself only right after it was created. */
  readonly shown: string;
}

/** The form of a server's keys. */
export interface KeyKind {
  /** New keys begin with it. */
  readonly prefix: string;
  readonly accepts: RegExp;
  /** Rule that `accepts` checks, in words. */
  readonly rule: string;
  /** Key that clients may send where none is asked for. */
  readonly none: string;
  /** The command, for the list of processes. */
  readonly command: string;
}

/** Tinker's SDK refuses keys of another form before it sends them. */
export const TINKER_KEY: KeyKind = {
  prefix: "tml-",
  accepts: /^tml-[\x21-\x7e]{1,508}$/,
  rule: "Tinker's SDK sends only keys that begin with tml-",
  none: "tml-local",
  command: "grpu serve tinker",
};

/** @throws ConfigError if a key is needed and missing, or if clients would not send it. */
export async function serverKey(options: Input["options"], io: Io, kind: KeyKind = TINKER_KEY): Promise<ServerKey> {
  const host = String(options.host);
  const key = await findKey(options, { io, kind });
  if (key.value !== undefined && !kind.accepts.test(key.value))
    throw new ConfigError(`Cannot use the key: ${kind.rule}. Choose such a key.`);
  if (key.value === undefined && !isLoopback(host))
    throw new ConfigError(
      `Cannot serve beyond this machine without a key (--host ${host}). Give --api-key-file, or leave --host at 127.0.0.1.`,
    );
  return key;
}

interface KeyContext {
  readonly io: Io;
  readonly kind: KeyKind;
}

async function findKey(options: Input["options"], context: KeyContext): Promise<ServerKey> {
  const { io, kind } = context;
  const { apiKey, apiKeyFile } = options;
  if (apiKey !== undefined && apiKeyFile !== undefined)
    throw new ConfigError("Cannot use two keys: give --api-key-file or --api-key, not both.");
  if (typeof apiKeyFile === "string") return keyInFile(apiKeyFile, context);
  if (typeof apiKey === "string") {
    // On Linux and macOS this takes the place of the command line in the list of processes.
    process.title = kind.command;
    return { value: apiKey, shown: `${kind.prefix}…` };
  }
  const { GRPU_API_KEY } = io.env;
  if (GRPU_API_KEY) return { value: GRPU_API_KEY, shown: "$GRPU_API_KEY" };
  return { value: undefined, shown: kind.none };
}

export async function keyInFile(file: string, { io, kind }: KeyContext): Promise<ServerKey> {
  const { readFile, stat } = await import("node:fs/promises");
  try {
    const info = await stat(file).catch(unlessMissing);
    if (!info) return await newKey(file, kind);
    if (isOpen(info)) io.err(`warning: others on this machine may read the key in ${file}: chmod 600 it\n`);
    return { value: (await readFile(file, "utf8")).trim(), shown: `$(cat ${JSON.stringify(file)})` };
  } catch (cause) {
    throw fileError(cause, { act: "use the key", file }) ?? cause;
  }
}

async function newKey(file: string, kind: KeyKind): Promise<ServerKey> {
  const { writeFile } = await import("node:fs/promises");
  const value = randomKey(kind);
  await writeFile(file, `${value}\n`, { flag: "wx", mode: 0o600 });
  return { value, shown: value };
}

export function randomKey({ prefix }: Pick<KeyKind, "prefix">): string {
  return prefix + Buffer.from(crypto.getRandomValues(new Uint8Array(24))).toString("base64url");
}

function isOpen({ mode }: Stats): boolean {
  return process.platform !== "win32" && (mode & 0o077) !== 0;
}

function unlessMissing(cause: NodeJS.ErrnoException): undefined {
  if (cause.code !== "ENOENT") throw cause;
}
