/**
 * Weights of a batch whose rows have different policies of one base: rows of one policy lie together. Adapters beside the
 * base share its products, and each adds its own to its rows; policies that are folded multiply their rows apart.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import { AdaptedWeights } from "../adapted_weights.ts";
import type { ModelConfig } from "../config.ts";
import type { ParameterSet, ParameterShape } from "../parameters.ts";
import type { RowRun } from "../row_windows.ts";
import type { ApplyBackwardOptions, ApplyOptions, FusedRows, Segment, Weights } from "../weights.ts";

/** Owner of the weights that a request draws with. */
export interface OfPolicy {
  /** Valid until another chunk is recorded. Records a fold where one is needed. */
  readonly weights: () => Weights;
}

/** The items ordered by policy, those of the first one first; otherwise in their order. */
export function byPolicy<T>(items: readonly T[], policyOf: (item: T) => OfPolicy): readonly T[] {
  const groups = new Map<OfPolicy, T[]>();
  for (const item of items) {
    const group = groups.get(policyOf(item));
    if (group) group.push(item);
    else groups.set(policyOf(item), [item]);
  }
  return groups.size <= 1 ? items : [...groups.values()].flat();
}

/** The weights of rows in the order of {@link byPolicy}: those of the one policy, or mixed ones. */
export function weightsOf(items: readonly { readonly policy: OfPolicy; readonly rows: number }[]): Weights {
  const runs: { policy: OfPolicy; first: number; rows: number }[] = [];
  let first = 0;
  for (const { policy, rows } of items) {
    const last = runs.at(-1);
    if (last?.policy === policy) last.rows += rows;
    else runs.push({ policy, first, rows });
    first += rows;
  }
  if (runs.length === 1) return runs[0]!.policy.weights();
  return new MixedWeights(runs.map(({ policy, ...run }) => ({ ...run, weights: policy.weights() })));
}

class MixedWeights implements Weights {
  readonly device: Device;
  readonly config: ModelConfig;
  readonly plain = undefined;
  readonly segments: readonly Segment[];
  /** The weights beside which every adapter lies; absent where a policy is folded. */
  private readonly base: Weights | undefined;

  constructor(segments: readonly Segment[]) {
    const [{ weights }] = segments as [Segment];
    this.segments = segments;
    this.device = weights.device;
    this.config = weights.config;
    this.base = sharedBase(segments);
  }

  /** Norms and biases, which no adapter changes. */
  get values(): ParameterSet {
    return this.segments[0]!.weights.values;
  }

  prepare(): void {
    for (const { weights } of this.segments) weights.prepare();
  }

  state(): readonly (object | number)[] {
    return this.segments.flatMap(({ rows, weights }) => [rows, ...weights.state()]);
  }

  shapeOf(name: string): ParameterShape {
    return this.segments[0]!.weights.shapeOf(name);
  }

  /** The same table in all policies. */
  embed(io: { tokens: Buffer; out: Buffer; count: number }): void {
    this.segments[0]!.weights.embed(io);
  }

  /** Not where adapters add to a product of the base that all rows share. */
  fuses(name: string, { part, m }: FusedRows): boolean {
    const { base, segments } = this;
    if (!base) return segments.every(({ weights, rows }) => weights.fuses(name, { part, m: rows }));
    const isAdapted = segments.some(({ weights }) => weights instanceof AdaptedWeights && weights.adapts(name));
    return !isAdapted && base.fuses(name, { part, m });
  }

  apply(name: string, io: ApplyOptions): void {
    const { base } = this;
    base?.apply(name, io);
    for (const { weights, first, rows: m } of this.segments) {
      const segmentIo = { ...io, first, m };
      if (!base) weights.apply(name, segmentIo);
      else if (weights instanceof AdaptedWeights && weights !== base) weights.addTo(name, segmentIo);
    }
  }

  applyBackward(name: string, _: ApplyBackwardOptions): void {
    throw new Error(`Cannot train on ${name} of several policies at once: gradients are of one policy.`);
  }

  ofRows({ first, rows }: RowRun): Weights {
    const cut = this.segments.flatMap((segment) => {
      const [from, to] = [Math.max(segment.first, first), Math.min(segment.first + segment.rows, first + rows)];
      return from < to ? [{ weights: segment.weights, first: from - first, rows: to - from }] : [];
    });
    return cut.length === 1 ? cut[0]!.weights : new MixedWeights(cut);
  }
}

/** Returns the weights that all policies are, or have an adapter beside: the same object. */
function sharedBase(segments: readonly Segment[]): Weights | undefined {
  const byPolicy = segments.map(({ weights }) => weights);
  const bases = [byPolicy[0]!, ...(byPolicy[0] instanceof AdaptedWeights ? [byPolicy[0].base] : [])];
  return bases.find((base) =>
    byPolicy.every((other) => other === base || (other instanceof AdaptedWeights && other.base === base)),
  );
}
