/** Attempts at the held-out tasks with one model, which trains nothing and keeps no folder: the recipe of `grpu eval`. */
import { existsSync } from "node:fs";
import { setting } from "../../config/schema.ts";
import { remembering } from "../../evaluation/remembered.ts";
import type { LoopSettings } from "../../loop/settings.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import { STAGES } from "../../loop/stages.ts";
import { train } from "../../loop/train.ts";
import type { KnownAttempts } from "../evaluation/known_attempts.ts";
import type { Recording } from "../gateway/recorded_rollout.ts";
import { type OpenedTrainer, openBackend } from "../model/backend.ts";
import { checkPrompts } from "../model/prompts.ts";
import { offerSampling } from "../model/recommended_sampling.ts";
import type { ComposedRun, Recipe, Steps } from "../recipe.ts";
import { type Composition, composeRun, openTask, type RunSession } from "../session.ts";

export interface ComposedEvaluation extends ComposedRun, Composition {}

/** The tasks and settings that all models of an evaluation attempt. */
export interface EvaluationData {
  readonly session: RunSession;
  readonly settings: LoopSettings;
  /** Modules of the user's. */
  readonly imports: readonly string[];
  /** Store of the attempts, among traces. */
  readonly recording?: Recording | undefined;
  /** Attempts of the model that earlier evaluations made. */
  readonly store?: KnownAttempts | undefined;
}

export interface OpenedEvaluation extends OpenedTrainer<RunSession> {
  readonly data: EvaluationData;
}

/** The model of an {@link Opening} is the checkpoint there; absent: the one that the configuration names. */
export const evalRecipe: Recipe<ComposedEvaluation, EvaluationData, OpenedEvaluation, Steps> = {
  name: "eval",

  compose({ overrides = [], ...options }, io) {
    return composeRun({ ...options, overrides: [...overrides, "rllm.trainer.val_only=true"] }, io);
  },

  async read(composition) {
    const session = await openTask(composition);
    const { distillation, ...trained } = settingsFromConfig(session.config);
    // A teacher scores what is trained on, and nothing is.
    const settings = { ...trained, distillation: { ...distillation, enabled: false } };
    return { session, settings, imports: composition.imports };
  },

  async open(data, { io, checkpoint, onClose }) {
    const opened = await openBackend(data.session, { io, checkpoint, isTrained: false });
    onClose(() => opened.backend.close());
    onClose(() => opened.rewardModel?.close());
    return { ...opened, data };
  },

  async prepare({ data, backend, session, rewardModel }, { io, checkpoint }) {
    const { settings, recording, store } = data;
    if (checkpoint !== undefined) await backend.load(checkpoint);
    checkPrompts(session, { backend, io });
    const folder = checkpoint ?? setting(session.config, "model.name");
    if (folder !== null && existsSync(folder)) await offerSampling(session, { folder, io });
    const rollout = recording?.wrap(session.rollout) ?? session.rollout;
    const stages = store ? { ...STAGES, generate: remembering(store) } : STAGES;
    const knownCount = store?.size ?? 0;
    if (knownCount > 0) io.err(`${knownCount} attempts are known from an earlier evaluation\n`);
    return { drive: (watched) => train({ ...session, ...watched, rollout, stages, backend, rewardModel, settings }) };
  },
};
