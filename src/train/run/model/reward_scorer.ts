/** Opens the reward model that scores the rollouts of a run. */

import type { Device } from "../../../engine/compute/device.ts";
import type { Backend } from "../../../engine/contract/backend.ts";
import type { RewardScorer } from "../../../engine/contract/reward_model.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { LocalRewardScorer } from "../../backend/local/reward_scorer.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { RunIo } from "../io.ts";
import { checkpointDir } from "./checkpoint_dir.ts";

const PATH = "reward_model.model.path";

/** The folder of the settings; undefined without a reward model. */
export function rewardModelFolder(config: Tree): string | undefined {
  return setting(config, "reward_model.enable") ? (setting(config, "reward_model.model.path") ?? undefined) : undefined;
}

/** @throws {ConfigError} for a folder that cannot be read or has no scalar head */
export async function openRewardScorer(
  config: Tree,
  { io, device }: { readonly io: RunIo; readonly device: Device },
): Promise<RewardScorer | undefined> {
  const folder = rewardModelFolder(config);
  return folder === undefined ? undefined : LocalRewardScorer.open(await checkpointDir(folder, io), { device });
}

/** @throws {UnsupportedError} for a backend that has no device of this process */
export function refuseRewardModel(config: Tree, backend: string): void {
  if (rewardModelFolder(config) === undefined) return;
  throw new UnsupportedError(
    `Cannot score with a reward model on the backend ${backend}: it runs next to the policy, on the local backend. Set reward_model.enable=false.`,
    { part: backend, capability: "reward_model" },
  );
}

/**
 * Compares the tokens of the reward model with the policy's.
 * @throws {ConfigError} where their number or their texts differ
 */
export function checkRewardTokens(scorer: RewardScorer | undefined, { model, tokenizer }: Backend): void {
  if (!scorer) return;
  const differ = (why: string) =>
    new ConfigError(
      `Cannot score with the reward model ${scorer.name}: ${why}. Train it from a model with the policy's tokenizer, or take its tokenizer for a new policy (model.init.tokenizer).`,
      { path: PATH },
    );
  if (scorer.vocabSize !== model.vocabSize)
    throw differ(`it has ${scorer.vocabSize} tokens, and the policy's model has ${model.vocabSize}`);
  if (!scorer.tokenizer || !tokenizer) return;
  for (let id = 0; id < model.vocabSize; id++) {
    const [its, ours] = [scorer.tokenizer.decode([id]), tokenizer.decode([id])];
    if (its !== ours)
      throw differ(`its token ${id} is ${JSON.stringify(its)}, and the policy's is ${JSON.stringify(ours)}`);
  }
}
