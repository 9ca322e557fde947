/** Renders the packaged YAML files from their tables. A test compares both directions. */

import { CLUSTER_SECTIONS } from "./cluster.ts";
import { DPO_FIELDS, DPO_SECTIONS } from "./dpo.ts";
import { LOCAL_FIELDS, LOCAL_SECTIONS } from "./local.ts";
import { renderFields } from "./render.ts";
import { REWARD_MODEL_FIELDS, REWARD_MODEL_SECTIONS } from "./reward_model.ts";
import { RLLM_FIELDS, RLLM_SECTIONS } from "./rllm.ts";
import { SFT_FIELDS, SFT_SECTIONS } from "./sft.ts";
import { TINKER_FIELDS, TINKER_SECTIONS } from "./tinker.ts";
import { TRINITY_BACKEND_FIELDS } from "./trinity.ts";
import { VERL_FIELDS } from "./verl.ts";
import { DEFAULT_VERL } from "./verl_tree.ts";

const ON_VERLS_TREE = `\ndefaults:\n  - /verl: "${DEFAULT_VERL}"\n  - _self_`;

/** Text by file name under `config/`. */
export function packagedFiles(): Record<string, string> {
  return {
    "rllm/base.yaml": renderFields(RLLM_FIELDS, {
      head: "Settings that mean the same on every backend, mounted at rllm.",
      sections: RLLM_SECTIONS,
      mount: "rllm",
    }),
    "sft.yaml": renderFields(SFT_FIELDS, {
      head: "Supervised fine-tuning: the settings of `grpu sft`, under the names of verl's SFT trainer where it has them.",
      sections: SFT_SECTIONS,
    }),
    "dpo.yaml": renderFields(DPO_FIELDS, {
      head: "Preference training: the settings of `grpu dpo`. Losses have TRL's names, the rest is as in `grpu sft`.",
      sections: DPO_SECTIONS,
    }),
    "reward-model.yaml": renderFields(REWARD_MODEL_FIELDS, {
      head: "A reward model: the settings of `grpu reward-model`. The loss has TRL's names, the rest is as in `grpu dpo`.",
      sections: REWARD_MODEL_SECTIONS,
    }),
    "rllm/backend/local.yaml": renderFields(LOCAL_FIELDS, {
      head: "@package _global_\nThe local backend: WebGPU on this machine.",
      sections: LOCAL_SECTIONS,
    }),
    "rllm/backend/tinker.yaml": renderFields(TINKER_FIELDS, {
      head: "@package _global_\nThe Tinker backend: the Tinker service, or any server that speaks its protocol.",
      sections: TINKER_SECTIONS,
    }),
    "rllm/backend/verl.yaml": renderFields(VERL_FIELDS, {
      head:
        "@package _global_\nThe verl backend: verl's own trainer on a Ray cluster; its tree, with what differs here.\n" +
        "Shared settings (rllm.* and their native names) are synchronised when the configuration is composed.",
      sections: CLUSTER_SECTIONS,
      preamble: ON_VERLS_TREE,
    }),
    "rllm/backend/trinity.yaml": renderFields(TRINITY_BACKEND_FIELDS, {
      head:
        "@package _global_\nThe trinity backend: Trinity-RFT's own trainer on a Ray cluster. Settings have verl's names and are converted\n" +
        "into Trinity's own configuration when the job is made; what Trinity alone has is in the section trinity.",
      sections: CLUSTER_SECTIONS,
      preamble: ON_VERLS_TREE,
    }),
  };
}
