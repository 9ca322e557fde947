/** `--k`: the sizes of pass@k and maj@k. */
import { ConfigError } from "../../leaves/errors.ts";
import { powersOfTwoUpTo } from "../../train/loop/validate.ts";

/**
 * The sizes, ascending; by default the powers of two below `n`, and `n`.
 * @throws {ConfigError} for a size that `n` attempts cannot estimate
 */
export function sizesOf(texts: readonly string[] | undefined, n: number): number[] {
  if (texts === undefined) return powersOfTwoUpTo(n);
  const sizes = texts.flatMap((text) => text.split(",")).map(Number);
  const wrong = sizes.findIndex((k) => !Number.isInteger(k) || k < 1 || k > n);
  if (wrong < 0) return [...new Set(sizes)].sort((a, b) => a - b);
  throw new ConfigError(
    `Cannot estimate pass@k: --k must be a whole number from 1 to ${n}, the attempts at each task (${texts.join(", ")}). Raise --n, or give a smaller K.`,
    { kind: "usage" },
  );
}
