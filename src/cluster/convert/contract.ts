/** The data of a conversion: what is read from one system, what is written for another, and the notes. */
import type { Problem } from "../../train/config/problem.ts";
import type { YamlValue } from "../../train/config/yaml/tree.ts";

export const SYSTEMS = ["verl", "rllm", "trinity"] as const;
export type TrainingSystem = (typeof SYSTEMS)[number];

export interface SourceValue {
  readonly value: YamlValue;
  readonly file: string;
  readonly line?: number | undefined;
  readonly comment?: Comment | undefined;
  /** Given as `+key=value`, which also adds what the system does not have. */
  readonly isAdded?: boolean;
  /** Reason why the value in a script is not known. */
  readonly unread?: string;
}

export interface Comment {
  /** Lines above the setting, as the YAML library keeps them (each with its leading space). */
  readonly before?: string | undefined;
  /** Comment on the setting's own line. */
  readonly inline?: string | undefined;
}

export interface ConvertedSource {
  readonly system: TrainingSystem;
  readonly values: Map<string, SourceValue>;
  readonly problems: Problem[];
  /** Assumptions and omissions of the reader. */
  readonly notes?: readonly Note[];
  /** Comment at the head of the file. */
  readonly head?: string | undefined;
}

export type NoteKind =
  | "exact"
  | "renamed"
  | "computed"
  | "split"
  | "merged"
  | "constant"
  | "profile"
  | "dropped"
  | "default differs"
  | "check";

/** One line of the report. */
export interface Note {
  readonly kind: NoteKind;
  readonly from?: string | undefined;
  readonly to?: string;
  readonly value?: YamlValue | undefined;
  readonly message?: string | undefined;
  readonly line?: number | undefined;
}

export interface OutValue {
  readonly value: YamlValue;
  readonly from: readonly string[];
}

export interface ConvertOptions {
  /** Trinity's two config builders: the one its guide describes, and the one for verl 0.8. */
  readonly target?: "legacy" | "new";
  /** Copies steps unchanged, as the guide does, or scales them by `sync_interval`. */
  readonly cadence?: "copy" | "scale";
  /** Write settings whose defaults differ in the other system. */
  readonly pin?: boolean;
  /** verl's own defaults, by path. */
  readonly verlDefaults?: ReadonlyMap<string, YamlValue>;
  /** Values that have no source, by path of the system that is written. */
  readonly profile?: ReadonlyMap<string, YamlValue>;
}

export interface Converted {
  readonly values: Map<string, OutValue>;
  readonly notes: readonly Note[];
  readonly problems: readonly Problem[];
}
