/** Files that a person names on the command line. */
import {
  closeSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { ConfigError, fileError } from "../../leaves/errors.ts";
import { nearest } from "../../leaves/nearest.ts";
import { decodeUtf8 } from "../../leaves/utf8.ts";

/** Folder of the package: `config/` and `shaders/` lie in it, in a checkout and when installed. */
export const PACKAGE_DIR = fileURLToPath(new URL("../../../", import.meta.url));

/** Returns the version in package.json. */
export function packageVersion(): string {
  return (JSON.parse(readFileSync(join(PACKAGE_DIR, "package.json"), "utf8")) as { version: string }).version;
}

/** Text of a file, or undefined. */
export function readTextIfPresent(path: string): string | undefined {
  return existsSync(path) && statSync(path).isFile() ? decodeUtf8(readFileSync(path), { file: path }) : undefined;
}

/** Text of a file that ships with the package, by its name under `config/`. */
export function packagedText(name: string): string | undefined {
  return readTextIfPresent(join(PACKAGE_DIR, "config", name));
}

/** A path as given or, where nothing is there, within the package (`examples/arithmetic/run.yaml` from anywhere). */
export function locate(path: string): string {
  const packaged = join(PACKAGE_DIR, path);
  return !existsSync(path) && existsSync(packaged) ? packaged : path;
}

/** @throws {ConfigError} of kind `data` for a file that cannot be read or is not UTF-8; with the nearest name when there is none. */
export function readText(path: string, what: string): string {
  return decodeUtf8(readBytes(path, what), { what, file: path, kind: "data" });
}

/** @throws {ConfigError} of kind `data` for a file that cannot be read; with the nearest name when there is none. */
export function readBytes(path: string, what: string): ArrayBuffer {
  if (!existsSync(locate(path))) throw missing(path, what);
  const { buffer, byteOffset, byteLength } = trying(`read the ${what}`, path, () => readFileSync(locate(path)));
  return buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer;
}

/** Writes a file that a person names. @throws {ConfigError} of kind `data` with the reason and what to do. */
export function writeText(path: string, text: string, what: string): void {
  trying(`write the ${what}`, path, () => writeFileSync(path, text));
}

/** Writes a large file piece by piece and replaces an earlier one as a whole. @throws {ConfigError} as {@link writeText} */
export function replaceFile(path: string, pieces: Iterable<string>): void {
  const draft = join(dirname(path), `.writing-${basename(path)}`);
  trying(`write ${basename(path)}`, path, () => {
    const file = openSync(draft, "w");
    try {
      for (const piece of inBlocks(pieces)) writeSync(file, piece);
    } catch (error) {
      rmSync(draft, { force: true });
      throw error;
    } finally {
      closeSync(file);
    }
    renameSync(draft, path);
  });
}

const BLOCK_CHARACTERS = 2 ** 16;

function* inBlocks(pieces: Iterable<string>): Generator<string> {
  let block = "";
  for (const piece of pieces) {
    block += piece;
    if (block.length < BLOCK_CHARACTERS) continue;
    yield block;
    block = "";
  }
  yield block;
}

function trying<T>(act: string, file: string, use: () => T): T {
  try {
    return use();
  } catch (cause) {
    throw fileError(cause, { act, file }) ?? cause;
  }
}

function missing(path: string, what: string): ConfigError {
  return new ConfigError(`Cannot read the ${what}: there is no such file (${path}).${nearestFile(path)}`, {
    kind: "data",
  });
}

/** ` Did you mean examples/arithmetic/run.yaml?`; empty where nothing is near, or the path itself exists. */
export function nearestFile(path: string): string {
  const found = nearestPath(path);
  return found === undefined || found === path ? "" : ` Did you mean ${found}?`;
}

/** The path whose every part exists and is the part given or the one nearest to it. */
function nearestPath(path: string): string | undefined {
  const parent = dirname(path);
  const folder = existsSync(locate(parent)) ? parent : nearestPath(parent);
  if (folder === undefined) return undefined;
  const names = readdirSync(locate(folder));
  const name = names.includes(basename(path)) ? basename(path) : nearest(basename(path), names);
  return name === undefined ? undefined : join(folder, name);
}
