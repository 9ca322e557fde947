/** Checks the names that a hub gives files before anything is written under them. */
import { ConfigError } from "../../leaves/errors.ts";

const LONGEST = 1000;
/** Absolute paths, drives, Windows' separators, and characters that steer a terminal or end a string. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is about control characters
const OUTSIDE = /^\/|^[a-z]:|\\|[\x00-\x1f\x7f]/i;
/** A step up or none, and git's own folder, whose hooks git would run; git refuses these names too. */
const REFUSED = /^(\.{0,2}|\.git|git~1)$/i;
/** Windows has no such names; `a:b` would write into a stream of `a`. */
const NOT_ON_WINDOWS = /[<>:"|?*]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)/i;

/** @throws {ConfigError} for a path that leads out of a folder or into its `.git`. */
export function checkPath(path: string): void {
  const isText = typeof path === "string" && path.length <= LONGEST;
  if (isText && !OUTSIDE.test(path) && !path.split("/").some((name) => REFUSED.test(name))) return;
  throw new ConfigError(
    `Cannot pull: the repository names a file outside of its folder (${JSON.stringify(path).slice(0, 200)}). Do not use this repository.`,
    { kind: "data" },
  );
}

/**
 * @throws {ConfigError} for files that would overwrite each other where case or accents do not count, as on macOS and
 *   Windows, for a file in the place of another's folder, and for names that the platform lacks.
 */
export function checkNames(paths: readonly string[], platform: string = process.platform): void {
  const byName = new Map<string, string>();
  for (const path of paths) {
    const other = byName.get(folded(path));
    if (other !== undefined) throw collision(path, other);
    byName.set(folded(path), path);
  }
  for (const path of paths) {
    for (const folder of foldersOf(path)) {
      const file = byName.get(folded(folder));
      if (file !== undefined) throw collision(path, file);
    }
    const isBad = platform === "win32" && path.split("/").some((name) => NOT_ON_WINDOWS.test(name));
    if (isBad)
      throw new ConfigError(
        `Cannot pull: Windows cannot have a file of this name (${path}). Leave it out with --exclude.`,
        { kind: "data" },
      );
  }
}

const folded = (path: string) => path.normalize("NFC").toLowerCase();

function foldersOf(path: string): string[] {
  const names = path.split("/");
  return names.slice(1).map((_, i) => names.slice(0, i + 1).join("/"));
}

function collision(path: string, other: string): ConfigError {
  return new ConfigError(
    `Cannot pull: two files of the repository can have the same place on a disk (${other}, ${path}). Leave one out with --exclude.`,
    { kind: "data" },
  );
}
