/** Makes folders, with errors that say what to do. */
import { fileError } from "../../../leaves/errors.ts";
import { nodeModule } from "../../../leaves/node_module.ts";

const { existsSync, mkdirSync, statSync } = /* @__PURE__ */ nodeModule("node:fs");
const { dirname } = /* @__PURE__ */ nodeModule("node:path");

export interface MakeFolders {
  /** Purpose of the folders: `keep checkpoints`. Default: the folder is made. */
  readonly act?: string;
  /** Permissions of what is made. Default 700: runs hold what people said to a model. */
  readonly mode?: number | undefined;
}

/**
 * Makes a folder and its parents. (Node's `recursive` never returns on a file system that refuses new folders, such as
 * /proc.)
 * @returns the folders that it made, the innermost first.
 * @throws {ConfigError} of kind `data` naming the folder that cannot be made.
 */
export function makeFolders(dir: string, { act = "make the folder", mode = 0o700 }: MakeFolders = {}): string[] {
  if (existsSync(dir) && statSync(dir).isDirectory()) return [];
  const above = dirname(dir);
  const made = above === dir ? [] : makeFolders(above, { act, mode });
  try {
    mkdirSync(dir, { mode });
    return [dir, ...made];
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    // Another process may have been quicker.
    if (code === "EEXIST" && statSync(dir).isDirectory()) return made;
    throw fileError(cause, { act, file: dir }) ?? cause;
  }
}
