/** Which tests judge the mutants of a folder, and the score that each folder must reach. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** Tests outside the folder's own that exercise it too. */
const ALSO: Readonly<Record<string, readonly string[]>> = {
  data: ["test/loop/*_test.ts"],
  loop: ["test/backend/local_test.ts"],
  model: ["test/backend/golden_model_test.ts"],
  backend: ["test/loop/*_test.ts"],
  serve: ["test/backend/engine_test.ts"],
  shaders: ["test/algorithm/**/*_test.ts", "test/compute/**/*_test.ts", "test/model/**/*_test.ts"],
};

/** Percent of mutants that the tests must notice. */
export const REQUIRED: Readonly<Record<string, number>> = { algorithm: 90, loop: 90, backend: 90, model: 90 };
export const REQUIRED_ELSEWHERE = 85;

/** Globs of the tests for mutants of `src/FOLDER`, or of `shaders`. */
export function testsFor(folder: string): string[] {
  const own = existsSync(join(ROOT, "test", folder)) ? [`test/${folder}/**/*_test.ts`] : [];
  return [...own, ...(ALSO[folder] ?? [])];
}
