/** The settings that a person changes while a run trains: each step takes those that hold when it starts. */
import { ConfigError } from "../../../src/leaves/errors.ts";
import type { Run } from "../../../src/train/loop/contract.ts";
import type { LoopSettings } from "../../../src/train/loop/settings.ts";
import { trainStep } from "../../../src/train/loop/step.ts";
import { type Given, LIVE_PATHS } from "../settings.ts";

export class LiveSettings {
  private settings: LoopSettings;
  /** Number of the next step, from 1. */
  private next = 1;

  constructor(settings: LoopSettings) {
    this.settings = settings;
  }

  /** Returns the step that takes them first. */
  change(settings: LoopSettings): number {
    this.settings = settings;
    return this.next;
  }

  readonly step: Run["step"] = (run, state) => {
    this.next = state.step + 2;
    return trainStep({ ...run, settings: this.settings }, state);
  };
}

/** @throws {ConfigError} for a change that a run under way cannot take */
export function checkLive(before: Given, after: Given): void {
  const paths = new Set([...Object.keys(before), ...Object.keys(after)]);
  for (const path of paths) {
    if (before[path] === after[path] || LIVE_PATHS.includes(path)) continue;
    throw new ConfigError(
      `Cannot change ${path} while the run trains: it acts when a run starts. Reset the run first.`,
      {
        path,
      },
    );
  }
}
