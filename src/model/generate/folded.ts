/** Several adapters on one base: copies of the weights with an adapter folded in, made on demand. */
import type { LoraAdapter } from "../train/lora_adapter.ts";
import { Weights } from "../weights.ts";

interface Slot {
  readonly weights: Weights;
  adapter?: LoraAdapter | undefined;
  version?: number;
}

/**
 * A few copies of the base weights for any number of adapters. When all copies are taken, the least recently used one is
 * reused.
 */
export class FoldedWeights {
  private readonly base: Weights;
  private readonly most: number;
  /** The most recently used comes last. */
  private readonly slots: Slot[] = [];

  /** @param options.slots most copies, at least 1. */
  constructor(base: Weights, options: { slots: number }) {
    this.base = base;
    this.most = Math.max(options.slots, 1);
  }

  /**
   * base + adapter with its current values. Records the folding where no copy has them. The result is valid until `slots`
   * other adapters have been requested.
   */
  of(adapter: LoraAdapter): Weights {
    const slot = this.slots.find((it) => it.adapter === adapter) ?? this.vacate();
    if (slot.adapter !== adapter || slot.version !== adapter.version) {
      adapter.fold(slot.weights);
      slot.adapter = adapter;
      slot.version = adapter.version;
    }
    this.slots.push(...this.slots.splice(this.slots.indexOf(slot), 1));
    return slot.weights;
  }

  /** Frees an adapter's copy for others. */
  forget(adapter: LoraAdapter): void {
    const at = this.slots.findIndex((it) => it.adapter === adapter);
    if (at < 0) return;
    this.slots[at]!.adapter = undefined;
    this.slots.unshift(...this.slots.splice(at, 1));
  }

  private vacate(): Slot {
    const unused = this.slots.find(({ adapter }) => !adapter);
    if (unused) return unused;
    if (this.slots.length >= this.most) return this.slots[0]!;
    const slot = { weights: new Weights(this.base.device, this.base.config, "folded weights") };
    this.slots.push(slot);
    return slot;
  }

  release(): void {
    for (const { weights } of this.slots) weights.release();
    this.slots.length = 0;
  }
}
