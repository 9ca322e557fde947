/** The skeleton of a run: what is the same for each recipe that trains into a folder. */
import { setting } from "../config/schema.ts";
import { type Left, whatIsLeft } from "./ending.ts";
import type { RunIo } from "./io.ts";
import { checkLoggers, openLoggers } from "./place/open_loggers.ts";
import { RunPlace } from "./place/run_place.ts";
import { Profiling } from "./profiled.ts";
import type { ComposedRun, Conclusion, Line, OpenedRun, Opening, Recipe, Steps } from "./recipe.ts";

/** Shows a run to people, or to nobody. */
export interface RunView {
  /** Called before the first step. */
  begin?(head: RunHead): void;
  /** Called after the last step, while the parts of the run are still open. */
  end?(ending: RunEnding): void;
}

/** Facts that are known before the first step. */
export interface RunHead {
  readonly lines: readonly Line[];
  readonly dir: string;
  /** Whether the folder gets files that the page of a run reads. */
  readonly isWatchable: boolean;
}

/** The result of a run, and how it ended. */
export interface RunEnding extends Left, Conclusion {}

export interface RecipeRunOptions {
  readonly io: RunIo;
  readonly view?: RunView;
  /** Writes a trace of the phases and kernels into the folder. Default false. */
  readonly isProfiled?: boolean;
}

/**
 * Makes a run into the folder that its configuration names.
 * @throws {ConfigError} for what must be corrected first; the folder is then as it was
 */
export async function runRecipe<C extends ComposedRun, D, O extends OpenedRun>(
  recipe: Recipe<C, D, O>,
  composed: C,
  options: RecipeRunOptions,
): Promise<RunEnding> {
  checkLoggers(composed.config, options.io);
  const data = await recipe.read(composed);
  const place = await RunPlace.open(composed.config, options.io);
  const { checkpoint, checkpoints } = place;
  try {
    const at = { io: options.io, checkpoint, checkpoints };
    return await withOpened(recipe, { data, ...at }, (opened, opening) =>
      runIn(place, { recipe, opened, opening, options }),
    );
  } finally {
    await place.close();
  }
}

/** Opens a recipe's model for `use`, and closes what was opened whatever happens. */
export async function withOpened<C extends ComposedRun, D, O, P extends Steps, T>(
  recipe: Pick<Recipe<C, D, O, P>, "open">,
  { data, ...at }: Omit<Opening, "onClose"> & { readonly data: D },
  use: (opened: O, opening: Opening) => Promise<T>,
): Promise<T> {
  const closers: (() => unknown)[] = [];
  const opening: Opening = { ...at, onClose: (close) => void closers.unshift(close) };
  try {
    return await use(await recipe.open(data, opening), opening);
  } finally {
    await closeAll(closers);
  }
}

async function closeAll([close, ...others]: readonly (() => unknown)[]): Promise<void> {
  try {
    await close?.();
  } finally {
    if (others.length > 0) await closeAll(others);
  }
}

interface Begun<C extends ComposedRun, D, O extends OpenedRun> {
  readonly recipe: Recipe<C, D, O>;
  readonly opened: O;
  readonly opening: Opening;
  readonly options: RecipeRunOptions;
}

async function runIn<C extends ComposedRun, D, O extends OpenedRun>(
  place: RunPlace,
  { recipe, opened, opening, options: { io, view, isProfiled } }: Begun<C, D, O>,
): Promise<RunEnding> {
  const { config, kept, device, description } = opened;
  const { dir, checkpoints } = place;
  place.use(kept);
  const prepared = await recipe.prepare(opened, opening);
  const { steps, title, parts } = prepared;
  const isWatchable = setting(config, "rllm.trainer.logger").some((name) => /^(jsonl|report)$/.test(name));
  const work = setting(config, "rllm.trainer.val_only")
    ? "validation only"
    : `${steps} ${steps === 1 ? "step" : "steps"}`;
  view?.begin?.({ lines: [...parts, ["run", `${work}, written to ${dir}`]], dir, isWatchable });
  await place.begin({
    title: setting(config, "rllm.trainer.experiment_name"),
    subtitle: `${title}; ${setting(config, "model.name") ?? "a new model"}; ${description}`,
    ...(device && { memory_budget_bytes: device.memory.budget }),
    total_steps: steps,
    started: new Date().toISOString(),
  });
  const profiling = isProfiled ? new Profiling({ device, description }) : undefined;
  const outcome = await prepared.drive({
    ...profiling?.parts,
    loggers: openLoggers({ config, dir, io }).map((logger) => place.logger(logger)),
    checkpoints,
    signal: AbortSignal.any([io.signal, place.signal]),
  });
  await place.end({ complete: outcome.isComplete });
  await profiling?.end(dir, io);
  const left = await whatIsLeft(place, { config, outcome });
  const ending = { ...left, ...prepared.conclude(left) };
  view?.end?.(ending);
  return ending;
}
