/** Settings of `grpu dpo` (`config/dpo.yaml`): those of `grpu sft`, with the losses and the fields of preferences under TRL's names. */

import type { PreferenceLoss } from "../../../engine/algorithm/preference/definition.ts";
import { builtInPreferenceLosses } from "../../../engine/algorithm/preference/losses.ts";
import type { Tree } from "../yaml/tree.ts";
import { type FieldTable, float, oneOf, str, type ValueOf } from "./field.ts";
import {
  DEVICE_FIELDS,
  MODEL_FIELDS,
  OPTIM_FIELDS,
  ROW_BACKEND_FIELDS,
  ROW_FIELDS,
  ROW_TRAINER_FIELDS,
  SERVICE_MODEL_FIELDS,
  SERVICE_TRAINER_FIELDS,
  SFT_SECTIONS,
} from "./sft.ts";

const {
  "data.messages_key": _messages,
  "data.response_key": _response,
  "data.text_key": _text,
  "data.train_on_what": _trainOn,
  ...ROWS
} = ROW_FIELDS;

/** The settings of the losses, but for beta: each with the losses that have it. Null keeps the loss's own default. */
function ownSettings(): FieldTable {
  const having = new Map<string, PreferenceLoss[]>();
  for (const loss of builtInPreferenceLosses())
    for (const name of Object.keys(loss.describeSettings)) having.set(name, [...(having.get(name) ?? []), loss]);
  return Object.fromEntries(
    Array.from(having, ([name, losses]) => {
      const { describeSettings, settings } = losses[0]!;
      const names = losses.map((loss) => loss.name).join(", ");
      return [`dpo.${name}`, float(null, `${describeSettings[name]} (${names}); null = ${settings[name]}`, { min: 0 })];
    }),
  );
}

const LOSS_FIELDS = {
  "dpo.loss_type": oneOf(
    builtInPreferenceLosses().map(({ name }) => name),
    "sigmoid",
    "preference loss: sigmoid is DPO; kto takes labelled rows, the others pairs",
    { open: true },
  ),
  "dpo.beta": float(0.1, "how much a log-ratio counts; in orpo the weight of the odds ratio", {
    min: 0,
    note: "SimPO's paper has 2 to 2.5.",
  }),
  // Without an index signature, so that other paths stay checked.
  ...(ownSettings() as object),
} as const;

const ANSWER_FIELDS = {
  "data.chosen_key": str("chosen", "field that holds the answer that is preferred"),
  "data.rejected_key": str("rejected", "field that holds the other one"),
  "data.completion_key": str("completion", "field that holds the answer, for kto"),
  "data.label_key": str("label", "field that says whether the answer is desirable, for kto"),
} as const;

export const DPO_FIELDS = {
  ...ROW_BACKEND_FIELDS,
  ...DEVICE_FIELDS,
  ...MODEL_FIELDS,
  ...SERVICE_MODEL_FIELDS,
  ...LOSS_FIELDS,
  ...ROWS,
  "data.prompt_key": str("prompt", "field that holds the prompt; without one, two conversations begin with it"),
  "data.train_batch_size": { ...ROWS["data.train_batch_size"], describe: "pairs, or labelled rows, of a step" },
  "data.train_batch_tokens": {
    ...ROWS["data.train_batch_tokens"],
    describe: "most tokens of a step, both answers counted, in place of data.train_batch_size; null = rows count",
  },
  ...ANSWER_FIELDS,
  ...OPTIM_FIELDS,
  "optim.lr": { ...OPTIM_FIELDS["optim.lr"], default: 1e-6 },
  ...ROW_TRAINER_FIELDS,
  "trainer.project_name": { ...ROW_TRAINER_FIELDS["trainer.project_name"], default: "dpo" },
  ...SERVICE_TRAINER_FIELDS,
} as const;

export const DPO_SECTIONS: Readonly<Record<string, string>> = {
  ...SFT_SECTIONS,
  data: "Preferences: where they are, how they are read, how many make a step",
  dpo: "The loss",
};

/** Reads a resolved setting of `grpu dpo` by its path. */
export function dpoSetting<K extends keyof typeof DPO_FIELDS & string>(
  config: Tree,
  path: K,
): ValueOf<typeof DPO_FIELDS, K> {
  let value: unknown = config;
  for (const key of path.split(".")) value = (value as Tree)[key];
  return value as ValueOf<typeof DPO_FIELDS, K>;
}
