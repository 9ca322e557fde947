/** The numbered requests of training clients: what each one does when its turn comes. */
import type { OptimParams } from "../../../engine/contract/backend.ts";
import type { LossRequest } from "../../../engine/contract/engine.ts";
import type { Activity } from "../activity.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { checkMetadata } from "../checkpoint/record.ts";
import { parsePath } from "../checkpoint_path.ts";
import type { RequestDatum } from "../protocol/forward_backward.ts";
import type { Future } from "../protocol/futures.ts";
import { lossRequestOf } from "../protocol/loss_request.ts";
import { inputNames, packLossRows, widthsOf } from "../protocol/loss_rows.ts";
import { jsonOutcome, type Refusal } from "../protocol/outcome.ts";
import { encodeTrainingOutput } from "../protocol/results.ts";
import type { SampledPolicies } from "../sample/policies.ts";
import type { Samplers } from "../sample/samplers.ts";
import type { TinkerSessions } from "../sessions.ts";
import type { Stability } from "../stability/stability.ts";
import { type SaveTarget, saveServedRun } from "./save_run.ts";
import type { Operation, TrainingRun } from "./training_run.ts";
import { refuseOptimizerOf, type TrainingRuns } from "./training_runs.ts";

/** A request's model, its number in that model's sequence, and a print that identifies its content. */
export interface Numbered {
  readonly modelId: string;
  readonly number: bigint;
  readonly print: string;
}

export interface TrainingRequestsOptions {
  readonly runs: TrainingRuns;
  readonly checkpoints: Checkpoints;
  readonly policies: SampledPolicies;
  readonly samplers: Samplers;
  readonly sessions: TinkerSessions;
  readonly activity: Activity;
  readonly stability: Stability;
}

/** The types of the answers to a save. */
const SAVE_TYPES = {
  weights: "save_weights",
  sampler_weights: "save_weights_for_sampler",
  external_weights: "save_weights_external",
} as const;

export class TrainingRequests {
  private readonly options: TrainingRequestsOptions;

  constructor(options: TrainingRequestsOptions) {
    this.options = options;
  }

  private submit(of: Numbered, operationOf: (run: TrainingRun) => Omit<Operation, "future">): Future {
    const run = this.options.runs.find(of.modelId);
    return run.sequence.submit(of.number, {
      print: of.print,
      make: () => ({ ...operationOf(run), future: run.open() }),
    });
  }

  /** Counts the number of a refused request as used: its client goes on with the next number. */
  skip(of: Numbered, at: { kind: "forward_backward" | "save"; reason: Refusal }): void {
    const run = this.options.runs.get(of.modelId);
    if (of.number <= 0n || !run || run.sequence.isUsed(of.number)) return;
    this.submit(of, () => ({ kind: at.kind, run: () => Promise.reject(at.reason) }));
  }

  forwardBackward(
    of: Numbered,
    request: { data: readonly RequestDatum[]; loss: LossRequest; forwardOnly: boolean },
  ): Future {
    const { data, loss, forwardOnly } = request;
    const { activity } = this.options;
    const { stability } = this.options;
    return this.submit(of, ({ model, record: { session } }) => ({
      kind: forwardOnly ? "forward" : "forward_backward",
      fitsBetween: true,
      run: async (trainer) => {
        // Before anything is packed: each input takes the room of all targets.
        const served = stability.lossOf(lossRequestOf(loss.name, loss.config));
        model.engine.checkLoss(served, inputNames(data));
        const rows = stability.rowsOf(packLossRows(data), { loss: served, data, session });
        const results = await trainer.forwardBackward(rows, { loss: served, forwardOnly });
        if (!forwardOnly) activity.trained(rows.tokens.length);
        const of = { ...results, offsets: rows.targetOffsets ?? rows.offsets, widths: widthsOf(rows) };
        return { kind: "proto", bytes: encodeTrainingOutput(of) };
      },
    }));
  }

  optimStep(of: Numbered, params: OptimParams): Future {
    return this.submit(of, () => ({
      kind: "optim_step",
      fitsBetween: true,
      run: async (trainer) => {
        const metrics = await trainer.optimStep(params);
        this.options.activity.steps++;
        return jsonOutcome({ metrics, type: "optim_step" });
      },
    }));
  }

  saveWeights(of: Numbered, to: SaveTarget): Future {
    checkMetadata(to.userMetadata);
    return this.submit(of, (run) => ({
      kind: "save",
      fitsBetween: true,
      run: async () => {
        const path = await saveServedRun(run, { checkpoints: this.options.checkpoints, to });
        return jsonOutcome({ path, type: SAVE_TYPES[to.kind] });
      },
    }));
  }

  /**
   * Makes a sampler on the policy as it is when the request's turn comes: on a snapshot of its own, or on the weights
   * that all inflight samplers of the model share, which this replaces.
   */
  makeSampler(of: Numbered, { kind, samplerNumber }: { kind: "snapshot" | "inflight"; samplerNumber: number }): Future {
    const { sessions, policies, samplers } = this.options;
    return this.submit(of, (run) => ({
      kind: "save",
      // A running batch may hold the weights that an inflight sampler's are to replace.
      fitsBetween: kind === "snapshot",
      run: async (trainer) => {
        const session = sessions.find(run.record.session);
        const id = `${session.id}:sample:${samplerNumber}`;
        const policy = { model: run.model, policy: await trainer.freeze(), session: session.id };
        const held =
          kind === "inflight" ? policies.publish(`${run.name} inflight`, policy) : policies.snapshot(id, policy);
        samplers.add({ id, ...held }, session);
        return jsonOutcome({ sampling_session_id: id, type: "save_weights_for_sampler" });
      },
    }));
  }

  loadWeights(of: Numbered, from: { path: string; optimizer: boolean }): Future {
    return this.submit(of, (run) => ({
      kind: "load",
      run: async (trainer) => {
        const path = parsePath(from.path);
        await this.options.checkpoints.read(path, (dir) => {
          refuseOptimizerOf(path, from);
          return trainer.load(dir, from);
        });
        run.unsavedSteps = 0;
        return jsonOutcome({ path: from.path, model_id: run.name, type: "load_weights" });
      },
    }));
  }
}
