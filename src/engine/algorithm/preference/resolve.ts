/** A preference loss resolved against a batch: its settings, its denominators, and what the batch must hold. */

import { ConfigError } from "../../../leaves/errors.ts";
import { forEachRow } from "../../packing/offsets.ts";
import { countRows, type MaskedRows, type RowCounts } from "../rows.ts";
import { mergeSettings } from "../settings.ts";
import type { PreferenceLoss } from "./definition.ts";
import { findPreferenceLoss } from "./losses.ts";
import type { PreferenceSettings } from "./pair.ts";

/** The loss to take, under TRL's name and settings. */
export interface PreferenceSpec {
  /** `sigmoid` (DPO), `robust`, `hinge`, `ipo`, `simpo`, `orpo` or `kto`: TRL's `loss_type`. */
  readonly loss_type: string;
  /** `beta`, `label_smoothing`, `simpo_gamma`, `rpo_alpha`, ...: those that the loss has. */
  readonly settings?: Readonly<Record<string, number>> | undefined;
  /** KTO's baseline; see {@link klBaseline}. Default 0. */
  readonly kl?: number | undefined;
  /** Pairs, or rows of `kto`, of the whole step where it is split over calls. Default: those of this call. */
  readonly global_batch_size?: number | undefined;
  /** Tokens of the likelihood term in the whole step where it is split over calls. Default: those of this call. */
  readonly batch_num_tokens?: number | undefined;
}

/** Rows end to end. Pairs: row 2i is chosen, row 2i + 1 rejected. */
export interface PreferenceRows extends MaskedRows {
  /** 1 at the tokens of the completion, [T]. */
  readonly mask: Uint32Array;
  /** 1 at the tokens of chosen rows in the likelihood term, [T]. Default: `mask`. TRL's ORPO counts the prompt too. */
  readonly nllMask?: Uint32Array | undefined;
  /** Labels for `kto`: 1 where a row is desirable, 0 where it is not, [N]. */
  readonly labels?: Uint32Array | undefined;
  /** Origin of each row, for errors, [N]. */
  readonly places?: readonly { readonly file: string; readonly line: number }[] | undefined;
}

/** Everything that the pass over the units needs to know of a spec. */
export interface ResolvedPreference {
  readonly loss: PreferenceLoss;
  /** Settings under their published names. */
  readonly settings: PreferenceSettings;
  /** KTO's baseline. */
  readonly kl: number;
  /** The params of the loss's form. */
  readonly params: PreferenceSettings;
  readonly counts: RowCounts;
  /** Pairs, or rows of `kto`. */
  readonly units: number;
  /** Factor of a unit's loss in the mean. */
  readonly scale: number;
  /** The likelihood term: its weight, and the tokens that it is a mean over. */
  readonly nll?: { readonly weight: number; readonly tokens: number } | undefined;
}

/** A loss with its settings, before a batch is known. */
export interface PlannedPreference extends Pick<ResolvedPreference, "loss" | "settings" | "kl" | "params"> {
  /** Weight of the likelihood term; 0: none. */
  readonly nllWeight: number;
}

/**
 * The loss of a spec with its settings over the defaults.
 * @throws {ConfigError} for an unknown loss or setting, and a value that the loss cannot take
 */
export function planPreference({ loss_type, settings: lossSettings = {}, kl = 0 }: PreferenceSpec): PlannedPreference {
  const loss = findPreferenceLoss(loss_type);
  const settings = mergeSettings("preference loss", loss, lossSettings);
  for (const [name, value] of Object.entries(settings)) checkRange(loss_type, name, value);
  return { loss, settings, kl, params: loss.params(settings, kl), nllWeight: loss.nllWeight(settings) };
}

/**
 * Resolves a spec for a batch.
 * @throws {ConfigError} as {@link planPreference}, and for rows that the loss cannot use
 */
export function resolvePreference(
  spec: PreferenceSpec,
  rows: PreferenceRows & { readonly refLogprobs?: unknown },
): ResolvedPreference {
  const { nllWeight, ...plan } = planPreference(spec);
  const counts = countRows(rows.offsets, rows.mask);
  checkRows(plan.loss, rows, counts);
  const units = plan.loss.unit === "pair" ? counts.trained.length / 2 : counts.trained.length;
  const scale = 1 / (spec.global_batch_size ?? units);
  if (nllWeight === 0) return { ...plan, counts, units, scale };
  const nll = { weight: nllWeight, tokens: spec.batch_num_tokens ?? likelihoodTokens(rows) };
  return { ...plan, counts, units, scale, nll };
}

/** Tokens of the likelihood term: those of chosen rows. */
export function likelihoodTokens({ offsets, mask, nllMask = mask }: PreferenceRows): number {
  let count = 0;
  forEachRow(offsets, (row, first, end) => {
    if (row % 2 === 0) for (let t = first; t < end; t++) count += Number(nllMask[t] !== 0);
  });
  return count;
}

/** Half of all labels wrong says nothing, and `robust` divides by the rest. */
const RANGES: Readonly<Record<string, readonly [rule: string, holds: (value: number) => boolean]>> = {
  beta: ["above 0", (value) => value > 0],
  label_smoothing: ["from 0 to below 0.5", (value) => value >= 0 && value < 0.5],
};

function checkRange(loss: string, name: string, value: number): void {
  const [rule, holds] = RANGES[name] ?? ["at least 0", (each: number) => each >= 0];
  if (holds(value) && Number.isFinite(value)) return;
  throw new ConfigError(`Cannot take the preference loss ${loss}: ${name} must be a number ${rule} (${value}).`, {
    path: name,
  });
}

function checkRows(
  { name, unit, hasReference }: PreferenceLoss,
  { labels, refLogprobs }: Pick<PreferenceRows, "labels"> & { readonly refLogprobs?: unknown },
  { trained }: RowCounts,
): void {
  const fail = (why: string, path: string) =>
    new ConfigError(`Cannot take the preference loss ${name}: ${why}`, { path });
  if (trained.length === 0) throw fail("the batch has no rows.", "offsets");
  if (unit === "pair" && trained.length % 2 === 1)
    throw fail(`rows come in pairs, chosen before rejected, and there are ${trained.length}.`, "offsets");
  if (unit === "row" && labels?.length !== trained.length)
    throw fail(`labels must have one element per row (${labels?.length ?? 0} of ${trained.length}).`, "labels");
  if (hasReference && !refLogprobs)
    throw fail("refLogprobs is missing. Score the rows with the reference.", "refLogprobs");
  const empty = trained.indexOf(0);
  if (empty >= 0) throw fail(`row ${empty} has no token of a completion (mask is 0 everywhere). Drop it.`, "mask");
}
