/** The policies of one base: its weights alone, or with an adapter, beside them or folded into a copy. */
import { AdaptedWeights, type BaseWeights, withAdapters } from "./adapted_weights.ts";
import { FoldedWeights, isFolded } from "./generate/folded.ts";
import { StoredWeights } from "./stored_weights.ts";
import { LoraAdapter } from "./train/lora_adapter.ts";
import type { Weights } from "./weights.ts";

/** A snapshot of a policy: the values of an adapter, or all weights. */
export interface FrozenPolicy {
  /** Device memory of the snapshot, bytes. */
  readonly bytes: number;
  /** Policies that one batch may have with this one, of the same base. Absent: 1, because norms may differ too. */
  readonly mostMixed?: number | undefined;
  /** Weights to run it with. Valid until another policy of the same model is run. */
  weights(): Weights;
  release(): void;
}

/** A copy of a policy, to sample from while the model trains. It has no values before the first update. */
export interface PolicyCopy extends FrozenPolicy {
  /** Takes the model's current values; samples that are being drawn switch to them. Records only. */
  update(): void;
}

/** Policies in one batch. Each adds products of its own to every step, so that more gain little. */
export const MOST_MIXED = 32;

export class PolicyWeights {
  readonly base: BaseWeights;
  /** The base with its own adapters: what an adapter that is trained on it starts from. */
  readonly start: Weights;
  private readonly folded: FoldedWeights;
  private readonly foldAdapter: boolean | "auto";

  /** @param options.adapterSlots folded copies that are kept. */
  constructor(base: BaseWeights, options: { foldAdapter: boolean | "auto"; adapterSlots: number }) {
    this.base = base;
    this.start = withAdapters(base.weights, base.adapters);
    this.folded = new FoldedWeights(base, { slots: options.adapterSlots });
    this.foldAdapter = options.foldAdapter;
  }

  /** The base with this adapter's current values. Records the folding where one is needed. */
  of(adapter: LoraAdapter | undefined): Weights {
    if (!adapter) return this.start;
    return this.isFolded(adapter) ? this.folded.of(adapter) : new AdaptedWeights(this.start, adapter);
  }

  private isFolded(adapter: LoraAdapter): boolean {
    return isFolded(adapter, { base: this.base, choice: this.foldAdapter });
  }

  /** A snapshot of the adapter's values, or without one of all weights. Copies on the device; records only. */
  freeze(adapter: LoraAdapter | undefined): FrozenPolicy {
    if (adapter) return this.adapterPolicy(adapter.snapshot());
    const copy = this.weightsCopy(() => this.base.weights);
    copy.update();
    return copy;
  }

  /** A copy of the adapter's values where it lies beside the base, else of all weights. */
  copy(adapter: LoraAdapter | undefined): PolicyCopy {
    if (!adapter) return this.weightsCopy(() => this.base.weights);
    if (this.isFolded(adapter)) return this.weightsCopy(() => this.folded.of(adapter));
    const copy = new LoraAdapter(this.base.weights, adapter.config);
    return { ...this.adapterPolicy(copy), update: () => copy.copyFrom(adapter) };
  }

  private adapterPolicy(copy: LoraAdapter): FrozenPolicy {
    const isFolded = this.isFolded(copy);
    const bytes = isFolded ? copy.values.byteLength : copy.byteLength;
    const mostMixed = isFolded ? this.folded.most : MOST_MIXED;
    return { bytes, mostMixed, weights: () => this.of(copy), release: () => this.release(copy) };
  }

  private weightsCopy(source: () => StoredWeights): PolicyCopy {
    const { device, config } = this.base.weights;
    const copy = new StoredWeights(device, config, { label: "copied weights" });
    return {
      bytes: copy.byteLength,
      weights: () => copy,
      update: () => copy.copyFrom(source()),
      release: () => copy.release(),
    };
  }

  /** Releases an adapter, and frees its folded copy for others. */
  release(adapter: LoraAdapter): void {
    this.folded.forget(adapter);
    adapter.release();
  }

  /** Releases the base and everything on it. */
  close(): void {
    this.folded.release();
    for (const adapter of this.base.adapters) adapter.release();
    this.base.weights.release();
  }
}
