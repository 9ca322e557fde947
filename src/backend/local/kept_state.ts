/** The trained state of a model in main memory, so that a run survives the loss of its GPU device. */
import type { LanguageModel } from "../../model/language_model.ts";
import type { ParameterSet } from "../../model/parameters.ts";

type Values = ReadonlyMap<string, Float32Array>;

/** What training has changed. Before the first step nothing has. */
export interface KeptState {
  readonly trained?: {
    readonly values: Values;
    readonly means: Values;
    readonly variances: Values;
    readonly step: number;
  };
  /** The frozen reference, where all weights train. */
  readonly reference?: Values;
}

/** Larger states are not read back after every step: a run returns to its last checkpoint instead. */
const MOST_BYTES = 512 * 2 ** 20;

/** Undefined for a state that is too large. */
export async function keepState(model: LanguageModel): Promise<KeptState | undefined> {
  const { step, trainable, frozenReference } = model;
  const bytes = (step > 0 ? 3 * trainable.byteLength : 0) + (frozenReference?.byteLength ?? 0);
  if (bytes > MOST_BYTES) return undefined;
  const reference = frozenReference && { reference: await frozenReference.values.read() };
  if (step === 0) return { ...reference };
  const { means, variances } = model.optimizer;
  const [values, mean, variance] = [await trainable.read(), await means.read(), await variances.read()];
  return { trained: { values, means: mean, variances: variance, step }, ...reference };
}

/** Into a model as it was before training. */
export async function restoreState(model: LanguageModel, { trained, reference }: KeptState): Promise<void> {
  if (reference) {
    model.freezeReference();
    write(model.frozenReference!.values, reference);
    model.frozenReference!.refresh();
  }
  if (trained) {
    const { optimizer } = model;
    write(model.trainable, trained.values);
    write(optimizer.means, trained.means);
    write(optimizer.variances, trained.variances);
    optimizer.step = trained.step;
    optimizer.gradients.clear();
    model.refresh();
  }
  await model.device.submit();
}

function write(into: ParameterSet, values: Values): void {
  for (const [name, data] of values) into.write(name, data);
}
