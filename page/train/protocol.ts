/** The messages between the page and the worker that trains: plain data, and the bytes of files. */
import type { Phase } from "../../src/train/log/logger.ts";
import type { GroupsLine, SampleLine } from "../../src/train/log/run_files.ts";
import type { RecipeName } from "./recipes.ts";
import type { DeviceChoice, Given } from "./settings.ts";

/** What a run is made of. */
export interface RunRequest {
  readonly recipe: RecipeName;
  readonly given: Given;
}

export interface StartRequest extends RunRequest {
  readonly device: DeviceChoice;
  /** The files of a model folder, for a recipe that trains one. */
  readonly model?: { readonly name: string; readonly files: ReadonlyMap<string, Blob> } | undefined;
}

/** From the page. */
export type Command =
  /** Answered with `described`, or `refused`. */
  | ({ readonly type: "describe" } & RunRequest)
  | ({ readonly type: "start" } & StartRequest)
  /** The live settings of a running run, all of them. Answered with `changed`, or `refused`. */
  | { readonly type: "change"; readonly given: Given }
  | { readonly type: "pause" | "continue" | "stop" | "export" };

/** One token with its text; `logprob` where the model sampled it. */
export interface TokenOf {
  readonly id: number;
  readonly text: string;
  readonly logprob?: number;
}

/** Tokens in a row that were given (a prompt, an observation), or that the model sampled. */
export interface Passage {
  readonly isSampled: boolean;
  readonly tokens: readonly TokenOf[];
}

/** One attempt at a task. */
export interface AttemptView {
  readonly reward: number | null;
  readonly isCorrect: boolean;
  /** Absent where the attempt was not trained on. */
  readonly advantage?: number;
  readonly passages: readonly Passage[];
}

/** The attempts at one task, which are compared with each other. */
export interface GroupView {
  readonly task: string;
  readonly prompt: string;
  readonly attempts: readonly AttemptView[];
}

export type StageName = "generate" | "transform" | "reject" | "batch" | "process" | "advantages" | "update" | "log";

/** What was measured at a step. */
export interface RecordNews {
  readonly type: "record";
  readonly phase: Phase;
  readonly step: number;
  readonly totalSteps: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly samples: readonly SampleLine[];
  /** Of a training step: the rewards of all its groups. */
  readonly groups?: GroupsLine | undefined;
  /** Of a training step: some groups, token by token. */
  readonly rollouts?: readonly GroupView[] | undefined;
  /** Why the step trained nothing. */
  readonly note?: string | undefined;
}

/** From the worker. */
export type News =
  | {
      readonly type: "described";
      /** The resolved value of each of the page's settings. */
      readonly values: Given;
      /** What a setting that is a choice takes. */
      readonly choices: Readonly<Record<string, readonly string[]>>;
    }
  | { readonly type: "refused"; readonly about: Command["type"]; readonly message: string }
  | {
      readonly type: "opened";
      readonly kind: "webgpu" | "cpu";
      /** The adapter's name. */
      readonly description: string;
      readonly parameters: number;
      readonly trainable: number;
    }
  | { readonly type: "stage"; readonly stage: StageName; readonly step: number }
  | { readonly type: "progress"; readonly done: number; readonly total: number }
  | RecordNews
  /** `values`: as of `described`. */
  | { readonly type: "changed"; readonly given: Given; readonly values: Given; readonly fromStep: number }
  /** The run stands between two steps, or goes on. */
  | { readonly type: "paused" | "continued" }
  | { readonly type: "warned" | "failed"; readonly message: string }
  | { readonly type: "ended"; readonly isComplete: boolean; readonly step: number }
  | { readonly type: "exported"; readonly name: string; readonly bytes: Uint8Array<ArrayBuffer> };

/** How the worker answers. */
export type Post = (news: News) => void;
