/** One run in a worker: takes the page's commands, and posts what happens. */
import type { Device } from "../../../src/engine/compute/device.ts";
import { openDevice } from "../../../src/engine/compute/open.ts";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import type { LoopSettings } from "../../../src/train/loop/settings.ts";
import { estimateAdvantagesOn } from "../../../src/train/loop/stages/estimate.ts";
import { train } from "../../../src/train/loop/train.ts";
import type { Command, Post, RunRequest, StartRequest } from "../protocol.ts";
import type { Given } from "../settings.ts";
import { Boundary } from "./boundary.ts";
import { choicesFor } from "./choices.ts";
import { composeRecipe, openTask, type ReadPackaged, type TaskParts, valuesOf } from "./compose.ts";
import { exportTrained } from "./export.ts";
import { checkLive, LiveSettings } from "./live_settings.ts";
import { type Opened, openBackend } from "./model.ts";
import { PostingLogger } from "./posting_logger.ts";
import { groupViews } from "./rollouts.ts";
import { WatchedStages } from "./watched_stages.ts";

/** A run that trains, or has trained. */
interface Running {
  /** With the settings that hold now. */
  request: RunRequest;
  readonly live: LiveSettings;
  readonly opened: Opened;
}

interface Work {
  readonly device: Device;
  readonly task: TaskParts;
  readonly settings: LoopSettings;
}

export class WorkerSession {
  private readonly post: Post;
  private readonly read: ReadPackaged;
  private readonly boundary = new Boundary(() => this.post({ type: "paused" }));
  private readonly stop = new AbortController();
  private running: Running | undefined;

  constructor(post: Post, read: ReadPackaged) {
    this.post = post;
    this.read = read;
  }

  /** Settles when the command is done; for `start` that is the end of the run. Never rejects. */
  async receive(command: Command): Promise<void> {
    try {
      await this.act(command);
    } catch (error) {
      this.post({ type: "refused", about: command.type, message: (error as Error).message });
    }
  }

  private async act(command: Command): Promise<void> {
    if (command.type === "describe") return this.describe(command);
    if (command.type === "start") return this.start(command);
    if (command.type === "change") return this.change(command.given);
    if (command.type === "export") return this.export();
    if (command.type === "stop") this.stop.abort();
    if (command.type === "pause") return this.boundary.hold();
    this.boundary.release();
    if (command.type === "continue") this.post({ type: "continued" });
  }

  private describe(request: RunRequest): void {
    const composed = composeRecipe(request, this.read);
    this.post({ type: "described", values: valuesOf(composed), choices: choicesFor(composed.settings) });
  }

  private async start(request: StartRequest): Promise<void> {
    const { config, settings } = composeRecipe(request, this.read);
    const task = openTask(config, this.read);
    const device = await openDevice({ device: request.device });
    try {
      const opened = await openBackend(device, { ...request, config, environment: task.environment });
      this.running = { request, live: new LiveSettings(settings), opened };
      this.announce(device, opened);
      await this.train(this.running, { device, task, settings });
    } catch (error) {
      device.destroy();
      this.running = undefined;
      throw error;
    }
  }

  private announce({ info }: Device, { backend }: Opened): void {
    const { parameters, trainableParameters: trainable } = backend.model;
    this.post({ type: "opened", kind: info.kind, description: info.description, parameters, trainable });
  }

  private async train({ live, opened }: Running, { device, task, settings }: Work): Promise<void> {
    const { backend, tokenizer } = opened;
    const watched = new WatchedStages(this.post);
    const rollouts = ({ episodes = [] }: LogRecord) =>
      groupViews(episodes, { tokenizer, advantages: watched.advantages });
    this.boundary.begin();
    try {
      const { state, isComplete } = await train({
        ...task,
        backend,
        settings,
        estimate: estimateAdvantagesOn(device),
        stages: watched.stages(),
        step: live.step,
        loggers: [new PostingLogger({ post: this.post, boundary: this.boundary, rollouts })],
        signal: this.stop.signal,
      });
      this.post({ type: "ended", isComplete, step: state.step });
    } catch (error) {
      this.post({ type: "failed", message: (error as Error).message });
    } finally {
      await this.boundary.end();
    }
  }

  private change(given: Given): void {
    const { running } = this;
    if (!running) throw new Error("Cannot change the settings: no run trains. Start one.");
    checkLive(running.request.given, given);
    const request = { ...running.request, given };
    const composed = composeRecipe(request, this.read);
    running.request = request;
    const fromStep = running.live.change(composed.settings);
    this.post({ type: "changed", given, values: valuesOf(composed), fromStep });
  }

  private async export(): Promise<void> {
    const { running } = this;
    if (!running) throw new Error("Cannot export: nothing was trained. Start a run.");
    const exported = await this.boundary.between(() => exportTrained(running.opened));
    this.post({ type: "exported", ...exported });
  }
}
