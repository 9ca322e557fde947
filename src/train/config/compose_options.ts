/** The inputs of a composed configuration. */
import type { Registered } from "./fields/fit.ts";
import type { RowCommand } from "./fields/reward_model.ts";
import type { Env } from "./hydra/interpolate.ts";

export type Base = "unified" | RowCommand;

export interface ComposeOptions {
  /** The packaged file that everything stands on: a training run, or a command that trains on rows. Default `unified`. */
  readonly base?: Base;
  /** The user's YAML files; a later one wins. */
  readonly files?: readonly string[];
  /** `key=value`, `rllm/backend=NAME`, ...; a later one wins, and all of them win over files. */
  readonly overrides?: readonly string[];
  /** Text of a user's file; undefined when there is none. */
  readonly readFile?: (path: string) => string | undefined;
  /** Text of a file that ships with the package, by its name under `config/`. */
  readonly readConfig: (name: string) => string | undefined;
  readonly env?: Env;
  /** Names that plug-ins registered, by setting; with a list, any other unknown name is an error. */
  readonly registered?: Registered;
  /** Report a setting that the backend cannot honour as a warning instead of an error. */
  readonly allowUnsupported?: boolean;
  /** Allow `???` in mandatory settings, for showing a configuration. */
  readonly allowMissing?: boolean;
}
