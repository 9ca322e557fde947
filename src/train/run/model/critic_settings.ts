/** The critic that a configuration asks for. */

import { loraTargets } from "../../../engine/model/lora.ts";
import { openModelShape } from "../../../engine/model/model_shape.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { CriticOptions } from "../../backend/local/critic.ts";
import type { CriticSetup } from "../../backend/local/plan/rehearsal.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { usesValues } from "../../loop/check_settings.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";

/**
 * Returns the start and the trained parts of a run's critic; undefined for a run without one.
 * @throws ConfigError for `critic.enable=false` where an estimator needs a critic.
 */
export function readCritic(config: Tree): CriticOptions | undefined {
  const isNeeded = usesValues(settingsFromConfig(config));
  const isWanted = setting(config, "critic.enable") ?? isNeeded;
  if (isNeeded && !isWanted)
    throw new ConfigError("Cannot estimate gae: critic.enable=false, and gae needs a critic. Set it to null.", {
      path: "critic.enable",
    });
  if (!isWanted) return undefined;
  const rank = setting(config, "critic.model.lora_rank") ?? setting(config, "model.lora_rank");
  const alpha = setting(config, "critic.model.lora_alpha") ?? setting(config, "model.lora_alpha");
  const targets = loraTargets({
    attn: setting(config, "model.train_attn"),
    mlp: setting(config, "model.train_mlp"),
    unembed: false,
  });
  return {
    folder: setting(config, "critic.model.path") ?? undefined,
    lora: rank === 0 ? null : { rank, alpha, targets },
    seed: setting(config, "training.seed"),
  };
}

/** Returns the critic's facts that a plan needs. */
export async function plannedCritic(critic: CriticOptions | undefined): Promise<CriticSetup | undefined> {
  if (!critic) return undefined;
  return { lora: critic.lora, model: critic.folder === undefined ? undefined : await openModelShape(critic.folder) };
}
