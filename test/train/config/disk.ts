/** Composition for tests: packaged files from the disk, the user's files from memory. */
import { readFileSync } from "node:fs";
import { type ComposeAttempt, type Composed, composeConfig, tryCompose } from "../../../src/train/config/compose.ts";
import type { ComposeOptions } from "../../../src/train/config/compose_options.ts";

export const readConfig = (name: string): string | undefined => {
  try {
    return readFileSync(new URL(`../../../config/${name}`, import.meta.url), "utf8");
  } catch {
    return undefined;
  }
};

type Options = Partial<ComposeOptions> & { readonly texts?: Readonly<Record<string, string>> };

export function attempt(overrides: readonly string[] = [], options: Options = {}): ComposeAttempt {
  return tryCompose(complete(overrides, options));
}

export function compose(overrides: readonly string[] = [], options: Options = {}): Composed {
  return composeConfig(complete(overrides, options));
}

function complete(overrides: readonly string[], { texts = {}, ...options }: Options): ComposeOptions {
  return {
    overrides,
    readConfig,
    readFile: (path) => texts[path],
    files: Object.keys(texts),
    allowMissing: true,
    env: {},
    ...options,
  };
}

/** The messages of an attempt's problems, in order. */
export function complaints(overrides: readonly string[], options: Options = {}): string[] {
  return attempt(overrides, options).problems.map(({ message }) => message);
}
