/** The trained state of a model in main memory, so that a run survives the loss of its GPU device. */
import type { LanguageModel } from "../../../engine/model/language_model.ts";
import type { ParameterSet } from "../../../engine/model/parameters.ts";
import type { ValueModel } from "../../../engine/model/value_model.ts";

type Values = ReadonlyMap<string, Float32Array>;

/** The values of a model that trains, and its optimiser's. */
export interface TrainedState {
  readonly values: Values;
  readonly means: Values;
  readonly variances: Values;
  readonly step: number;
}

/** State that training has changed. Before the first step it is empty. */
export interface KeptState {
  readonly trained?: TrainedState;
  /** The frozen reference, where all weights train. */
  readonly reference?: Values;
  readonly critic?: TrainedState;
}

/** Larger states are not read back after every step: a run returns to its last checkpoint instead. */
const MOST_BYTES = 512 * 2 ** 20;

/** The state of one model; undefined where it is too large. */
export async function keepTrained(model: Trained): Promise<TrainedState | undefined> {
  return 3 * model.trainable.byteLength > MOST_BYTES ? undefined : readTrained(model);
}

/** Undefined for a state that is too large. */
export async function keepState(model: LanguageModel, critic?: ValueModel): Promise<KeptState | undefined> {
  const { step, trainable, frozenReference } = model;
  const ofCritic = critic?.isStarted ? 3 * critic.trainable.byteLength : 0;
  const bytes = (step > 0 ? 3 * trainable.byteLength : 0) + (frozenReference?.byteLength ?? 0) + ofCritic;
  if (bytes > MOST_BYTES) return undefined;
  return {
    ...(frozenReference && { reference: await frozenReference.values.read() }),
    ...(critic?.isStarted && { critic: await readTrained(critic) }),
    ...(step > 0 && { trained: await readTrained(model) }),
  };
}

type Trained = Pick<LanguageModel, "optimizer" | "trainable" | "step" | "refresh">;

async function readTrained({ optimizer, trainable, step }: Trained): Promise<TrainedState> {
  const { means, variances } = optimizer;
  return { values: await trainable.read(), means: await means.read(), variances: await variances.read(), step };
}

/** Restores the state into a model as it was before training, and its critic. */
export async function restoreState(
  model: LanguageModel,
  { trained, reference, critic }: KeptState,
  into?: ValueModel,
): Promise<void> {
  if (reference) {
    model.freezeReference();
    write(model.frozenReference!.values, reference);
    model.frozenReference!.refresh();
  }
  if (trained) writeTrained(model, trained);
  if (critic && into) writeTrained(into, critic);
  await model.device.submit();
}

/** Records only. */
export function writeTrained(model: Trained, { values, means, variances, step }: TrainedState): void {
  const { optimizer } = model;
  write(model.trainable, values);
  write(optimizer.means, means);
  write(optimizer.variances, variances);
  optimizer.step = step;
  optimizer.gradients.clear();
  model.refresh();
}

function write(into: ParameterSet, values: Values): void {
  for (const [name, data] of values) into.write(name, data);
}
