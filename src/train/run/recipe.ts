/**
 * The form of a recipe, a kind of run: one value in a file of recipes/. The skeleton (run_recipe.ts) calls its parts in the order in which
 * they stand here, and does what all runs have in common.
 */
import type { Device } from "../../engine/compute/device.ts";
import type { Tree } from "../config/yaml/tree.ts";
import type { FolderCheckpoints } from "../log/checkpoint/folder_checkpoints.ts";
import type { LoopState, Run, TrainOutcome } from "../loop/contract.ts";
import type { RunSessionOptions } from "./compose_files.ts";
import type { Left } from "./ending.ts";
import type { RunIo } from "./io.ts";
import type { RunSession } from "./session.ts";

/** Requests besides the configuration. */
export interface RunRequest extends Omit<RunSessionOptions, "isRecorded"> {
  /** Recorded sessions to train on, of the recipe `train`. */
  readonly traces?: TraceOptions;
}

/** `--from-traces` and `--latest`. */
export interface TraceOptions {
  /** A trace database, or what `grpu traces export` wrote. Undefined: the run samples. */
  readonly file: string | undefined;
  /** Each step takes the newest groups of a database that grows. */
  readonly isLatest: boolean;
}

/** A configuration that a recipe has composed and checked, as that of a training run. */
export interface ComposedRun {
  readonly config: Tree;
}

/**
 * A kind of run.
 * C: its composed configuration; D: its data; O: its model on a device; P: its steps.
 */
export interface Recipe<C extends ComposedRun, D, O, P extends Steps = PreparedRun> {
  /** Also the name of its command. */
  readonly name: string;
  /** Reads the settings. @throws {ConfigError} that names the file or key to correct */
  compose(request: RunRequest, io: RunIo): Promise<C>;
  /** Reads the data. Nothing is written or opened yet. @throws {ConfigError} that names the file, key or row to correct */
  read(composed: C): Promise<D>;
  /** Opens the model that the run trains or attempts with. */
  open(data: D, opening: Opening): Promise<O>;
  /** Opens what the steps need besides, and checks it against the model. */
  prepare(opened: O, opening: Opening): Promise<P>;
}

/** Surroundings in which a recipe opens its parts. */
export interface Opening {
  readonly io: RunIo;
  /** The weights to continue from, or to attempt with. */
  readonly checkpoint: string | undefined;
  /** The run's own. */
  readonly checkpoints?: FolderCheckpoints<LoopState>;
  /** Closes a part after the run, whatever happens; the last part first. */
  onClose(close: () => unknown): void;
}

/** A model that a run in a folder trains. */
export interface OpenedRun {
  /** The configuration, with what the checkpoint fixes. */
  readonly config: Tree;
  /** Configuration that the folder keeps, as the user knows it. */
  readonly kept: Pick<RunSession, "config" | "added">;
  /** Absent where another machine computes. */
  readonly device?: Device;
  /** Name of what does the work, for people. */
  readonly description: string;
}

/** Values that the skeleton gives to the steps of a run. */
export type Watched = Pick<Run, "loggers" | "checkpoints" | "signal" | "onPhase">;

/** The steps of a run, ready to be made. */
export interface Steps {
  /** Makes them, with the validations between them. */
  drive(watched: Watched): Promise<TrainOutcome>;
}

/** A word and a text that people read beside each other. */
export type Line = readonly [label: string, text: string];

/** The steps of a run in a folder. */
export interface PreparedRun extends Steps {
  readonly steps: number;
  /** The kind of work in a few words, for the report. */
  readonly title: string;
  /** Lines that say what the run is made of. */
  readonly parts: readonly Line[];
  /** Facts that people want at the end. */
  conclude(left: Left): Conclusion;
}

/** How a run ended, in words. */
export interface Conclusion {
  /** Result, and the best checkpoint. */
  readonly reached: readonly Line[];
  /** The setting with which a run that was stopped goes on. */
  readonly resume: string;
  /** Place of the model, when it is not in the folder. */
  readonly saved?: Line | undefined;
  /** A command that uses the model: its words after the program's name, as a shell reads them. */
  readonly command?: Line | undefined;
}
