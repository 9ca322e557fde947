/** Settings of `grpu dpo` (`config/dpo.yaml`): those of `grpu sft`, with the losses and the fields of preferences under TRL's names. */

import type { Tree } from "../yaml/tree.ts";
import { float, oneOf, str, type ValueOf } from "./field.ts";
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

/** null: the loss's own default. A setting that the loss does not have is refused. */
const optionalFloat = (describe: string) => float(null, describe, { min: 0 });

const LOSS_FIELDS = {
  "dpo.loss_type": oneOf(
    ["sigmoid", "robust", "hinge", "ipo", "simpo", "orpo", "kto"],
    "sigmoid",
    "preference loss: sigmoid is DPO; kto takes labelled rows, the others pairs",
  ),
  "dpo.beta": float(0.1, "how much a log-ratio counts; in orpo the weight of the odds ratio", {
    min: 0,
    note: "SimPO's paper has 2 to 2.5.",
  }),
  "dpo.label_smoothing": optionalFloat(
    "share of labels that are taken to be wrong, below 0.5 (sigmoid: cDPO; robust, simpo); null = 0",
  ),
  "dpo.simpo_gamma": optionalFloat("margin between the two rewards in simpo; null = 0.5"),
  "dpo.rpo_alpha": optionalFloat("weight of the likelihood of chosen answers (sigmoid, robust, hinge, ipo); null = 0"),
  "dpo.cpo_alpha": optionalFloat("weight of the likelihood of chosen answers in simpo; null = 0"),
  "dpo.desirable_weight": optionalFloat("weight of desirable rows in kto; null = 1"),
  "dpo.undesirable_weight": optionalFloat("weight of undesirable rows in kto; null = 1"),
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
