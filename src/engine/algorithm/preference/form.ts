/** The form of a preference loss: one function of a unit's scores, in TypeScript and in WGSL joined to preference/pairs.wgsl. */
import { ConfigError } from "../../../leaves/errors.ts";
import type { PreferenceLossForm } from "./definition.ts";
import { preferenceKernel } from "./kernel.ts";
import type { PairFunction } from "./pair.ts";

/** The parts that a form is made of. */
export interface PreferenceFormOptions<K extends string> {
  readonly name: string;
  /** Fields of `params.settings` in the WGSL, in its order. */
  readonly params: readonly K[];
  readonly pair: PairFunction<Readonly<Record<K, number>>>;
  /**
   * `fn pair_loss(s: Scores) -> PairLoss`, with the functions it calls. Its params are `params.settings.NAME`; `Scores`, `PairLoss`,
   * `of_difference`, `softplus` and `logistic` are those of shaders/preference.
   */
  readonly wgsl: string;
}

/**
 * Makes the form of a preference loss from its function in both languages.
 * @throws {ConfigError} when `wgsl` lacks its function
 */
export function preferenceForm<const K extends string>(options: PreferenceFormOptions<K>): PreferenceLossForm {
  const { name, params, wgsl } = options;
  if (!/\bfn\s+pair_loss\s*\(/.test(wgsl))
    throw new ConfigError(
      "Cannot join the preference loss to its pass: it does not define pair_loss. Give `fn pair_loss(s: Scores) -> PairLoss`.",
      { path: "wgsl" },
    );
  const pair = options.pair as PairFunction;
  return { name, params, pair, kernel: preferenceKernel({ name, params, wgsl, pair }) };
}
