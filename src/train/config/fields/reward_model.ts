/** Settings of `grpu reward-model` (`config/reward-model.yaml`): those of `grpu dpo` for pairs, with TRL's names for the loss. */

import type { Tree } from "../yaml/tree.ts";
import { DPO_FIELDS } from "./dpo.ts";
import { type FieldTable, float, str, type ValueOf } from "./field.ts";
import { DEVICE_FIELDS, MODEL_FIELDS, OPTIM_FIELDS, ROW_TRAINER_FIELDS, SFT_FIELDS, SFT_SECTIONS } from "./sft.ts";

// A scalar head is in place of the output matrix, and nothing is sampled.
const { "model.train_unembed": _unembed, "model.fold_adapter": _fold, ...MODEL } = MODEL_FIELDS;

type DataFields = {
  readonly [K in keyof typeof DPO_FIELDS as K extends `data.${string}` ? K : never]: (typeof DPO_FIELDS)[K];
};
const DATA = Object.fromEntries(Object.entries(DPO_FIELDS).filter(([path]) => path.startsWith("data."))) as DataFields;
const { "data.completion_key": _completion, "data.label_key": _label, ...ROWS } = DATA;

export const REWARD_MODEL_FIELDS = {
  ...DEVICE_FIELDS,
  ...MODEL,
  "reward_model.center_rewards_coefficient": float(
    null,
    "weight of the mean of (chosen + rejected)^2, which keeps scores near 0; null = 0",
    { min: 0, note: "TRL recommends 0.01." },
  ),
  ...ROWS,
  "data.train_batch_size": { ...ROWS["data.train_batch_size"], describe: "pairs of a step" },
  "data.margin_key": str("margin", "field that says by how much the chosen answer should be ahead; a row may lack it"),
  ...OPTIM_FIELDS,
  ...ROW_TRAINER_FIELDS,
  "trainer.project_name": { ...ROW_TRAINER_FIELDS["trainer.project_name"], default: "reward_model" },
} as const;

export const REWARD_MODEL_SECTIONS: Readonly<Record<string, string>> = {
  ...SFT_SECTIONS,
  data: "Pairs: where they are, how they are read, how many make a step",
  reward_model: "The loss",
};

/** Reads a resolved setting of `grpu reward-model` by its path. */
export function rewardModelSetting<K extends keyof typeof REWARD_MODEL_FIELDS & string>(
  config: Tree,
  path: K,
): ValueOf<typeof REWARD_MODEL_FIELDS, K> {
  let value: unknown = config;
  for (const key of path.split(".")) value = (value as Tree)[key];
  return value as ValueOf<typeof REWARD_MODEL_FIELDS, K>;
}

/** Tables of the commands that train on given rows. */
export const ROW_TABLES: Readonly<Record<RowCommand, FieldTable>> = {
  sft: SFT_FIELDS,
  dpo: DPO_FIELDS,
  "reward-model": REWARD_MODEL_FIELDS,
};

/** A command that trains on given rows. */
export type RowCommand = "sft" | "dpo" | "reward-model";
