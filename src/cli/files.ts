/** Files that a person names on the command line. */
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { nearest } from "../config/problem.ts";
import { ConfigError } from "../errors.ts";

/** Folder of the package: `config/` and `shaders/` lie in it, in a checkout and when installed. */
export const PACKAGE_DIR = fileURLToPath(new URL("../../", import.meta.url));

/** Text of a file, or undefined. */
export function textOf(path: string): string | undefined {
  return existsSync(path) && statSync(path).isFile() ? readFileSync(path, "utf8") : undefined;
}

/** Text of a file that ships with the package, by its name under `config/`. */
export function packagedText(name: string): string | undefined {
  return textOf(join(PACKAGE_DIR, "config", name));
}

/** A path as given or, where nothing is there, within the package (`config/run/arithmetic.yaml` from anywhere). */
export function locate(path: string): string {
  const packaged = join(PACKAGE_DIR, path);
  return !existsSync(path) && existsSync(packaged) ? packaged : path;
}

/** @throws {ConfigError} with the nearest name when there is no such file. */
export function readText(path: string, what: string): string {
  const text = textOf(locate(path));
  if (text !== undefined) return text;
  throw missing(path, what);
}

/** @throws {ConfigError} with the nearest name when there is no such file. */
export function readBytes(path: string, what: string): ArrayBuffer {
  if (!existsSync(locate(path))) throw missing(path, what);
  const { buffer, byteOffset, byteLength } = readFileSync(locate(path));
  return buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer;
}

/**
 * Makes a folder, and those above it. (`recursive` of the runtime's own never returns where a file system lets none be
 * made, as below /proc.)
 * @throws {ConfigError} naming the setting that says where.
 */
export function makeFolder(dir: string, { setting }: { setting: string }): void {
  if (existsSync(dir) && statSync(dir).isDirectory()) return;
  const above = dirname(dir);
  if (above !== dir) makeFolder(above, { setting });
  try {
    mkdirSync(dir);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    // Another process may have been quicker.
    if (code === "EEXIST" && statSync(dir).isDirectory()) return;
    const why = code === "EEXIST" ? "a file of that name is in the way" : (cause as Error).message;
    throw new ConfigError(`Cannot make the folder ${dir} as ${why}. Name another`, { path: setting });
  }
}

function missing(path: string, what: string): ConfigError {
  return new ConfigError(`Cannot read the ${what} as there is no such file: ${path}${nearestFile(path)}`);
}

/** `. Did you mean config/run/arithmetic.yaml?`, or nothing, as where the path itself is there. */
export function nearestFile(path: string): string {
  const folder = dirname(locate(dirname(path)) === dirname(path) ? path : join(PACKAGE_DIR, path));
  if (!existsSync(folder)) return "";
  const found = nearest(basename(path), readdirSync(folder));
  return found === undefined || found === basename(path)
    ? ""
    : `. Did you mean ${join(dirname(path), found)}?`;
}
