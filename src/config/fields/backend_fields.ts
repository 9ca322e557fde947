/** The backends that a configuration can choose, each with the table of settings that are only its own. */
import type { Fields } from "./field.ts";
import { LOCAL_FIELDS } from "./local.ts";
import { TINKER_FIELDS } from "./tinker.ts";
import { VERL_FIELDS } from "./verl.ts";

export const BACKENDS = ["local", "tinker", "verl"] as const;
export type BackendName = (typeof BACKENDS)[number];

export const BACKEND_FIELDS: Readonly<Record<BackendName, Fields>> = {
  local: LOCAL_FIELDS,
  tinker: TINKER_FIELDS,
  verl: VERL_FIELDS,
};
