/** Settings that differ from those the run began with. */
import { existsSync, readFileSync } from "node:fs";
import { readYaml } from "../../config/yaml/read.ts";
import { equalValues, flatten, type Tree } from "../../config/yaml/tree.ts";
import type { RunIo } from "../io.ts";

/** Settings that may differ between the parts of a run: how long it is, where it stops, what it prints. */
const FREE_TO_CHANGE =
  /^(training\.resume_|training\.default_local_dir$|training\.(max_tokens_per_pass|gradient_checkpointing)$|rollout\.max_num_(seqs|batched_tokens)$|rollout\.speculative_config\.|(rllm\.)?trainer\.(?!seed$)|data\.max_token_len_per_gpu$|model\.enable_gradient_checkpointing$|device(_\w+)?$|memory_budget_bytes$)/;

/** Warns about settings that differ from those the run began with. */
export function warnOfChanges(config: Tree, { file, io }: { file: string; io: RunIo }): void {
  const before = existsSync(file) ? flatten(readYaml(readFileSync(file, "utf8"), file).tree) : undefined;
  if (!before) return;
  for (const [path, value] of flatten(config)) {
    if (FREE_TO_CHANGE.test(path) || equalValues(value, before.get(path))) continue;
    io.err(`warning: ${path} was ${JSON.stringify(before.get(path))} and is now ${JSON.stringify(value)}\n`);
  }
}
