/** The backends that a configuration can choose, each with the table of settings that are only its own. */
import type { FieldTable } from "./field.ts";
import { LOCAL_FIELDS } from "./local.ts";
import { TINKER_FIELDS } from "./tinker.ts";
import { TRINITY_BACKEND_FIELDS } from "./trinity.ts";
import { VERL_FIELDS } from "./verl.ts";

export const BACKENDS = ["local", "tinker", "verl", "trinity"] as const;
export type BackendName = (typeof BACKENDS)[number];

export const BACKEND_FIELDS: Readonly<Record<BackendName, FieldTable>> = {
  local: LOCAL_FIELDS,
  tinker: TINKER_FIELDS,
  verl: VERL_FIELDS,
  trinity: TRINITY_BACKEND_FIELDS,
};

/** Backends whose trainer runs on a Ray cluster. Their configurations are written in verl's names, on verl's tree. */
export const CLUSTER_BACKENDS = ["verl", "trinity"] as const satisfies readonly BackendName[];
export type ClusterBackend = (typeof CLUSTER_BACKENDS)[number];

export const isClusterBackend = (name: string): name is ClusterBackend =>
  CLUSTER_BACKENDS.some((each) => each === name);
