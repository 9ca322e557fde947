/** Several adapters on one base: f32 copies of the weights with an adapter folded in, made on demand. */

import type { BaseWeights } from "../adapted_weights.ts";
import { parameterCount } from "../layers.ts";
import { StoredWeights } from "../stored_weights.ts";
import type { LoraAdapter } from "../train/lora_adapter.ts";

/** A fold of more elements takes more memory than its speed is worth: docs/log/2026-11-22-a-lora-adapter-beside-the-weights.md. */
const MAX_FOLDED_ELEMENTS = 2 ** 25;

/** Whether this adapter is folded rather than applied beside the base. */
export function isFolded(
  adapter: LoraAdapter,
  { base: { weights, adapters }, choice }: { base: BaseWeights; choice: boolean | "auto" },
): boolean {
  if (choice !== "auto") return choice;
  const isSoftware = weights.device.info.family === "scalar";
  const isOnTiedTable = [...adapters, adapter].some((each) => each.isOnTiedTable);
  return (
    isSoftware && !isOnTiedTable && weights.plain !== undefined && parameterCount(weights.config) <= MAX_FOLDED_ELEMENTS
  );
}

interface Slot {
  readonly weights: StoredWeights;
  adapter?: LoraAdapter | undefined;
  version?: number;
}

/**
 * A few copies of the base weights for any number of adapters. When all copies are taken, the least recently used one is
 * reused.
 */
export class FoldedWeights {
  private readonly base: BaseWeights;
  /** Copies that can be in use together. */
  readonly most: number;
  /** The most recently used comes last. */
  private readonly slots: Slot[] = [];

  /** @param options.slots most copies, at least 1. */
  constructor(base: BaseWeights, options: { slots: number }) {
    this.base = base;
    this.most = Math.max(options.slots, 1);
  }

  /**
   * base + adapter with its current values. Records the folding where no copy has them. The result is valid until `slots`
   * other adapters have been requested.
   */
  of(adapter: LoraAdapter): StoredWeights {
    const slot = this.slots.find((slot) => slot.adapter === adapter) ?? this.vacate();
    if (slot.adapter !== adapter || slot.version !== adapter.version) {
      slot.weights.copyFrom(this.base.weights);
      for (const each of [...this.base.adapters, adapter]) each.addTo(slot.weights);
      slot.adapter = adapter;
      slot.version = adapter.version;
    }
    this.slots.push(...this.slots.splice(this.slots.indexOf(slot), 1));
    return slot.weights;
  }

  /** Frees an adapter's copy for others. */
  forget(adapter: LoraAdapter): void {
    const at = this.slots.findIndex((slot) => slot.adapter === adapter);
    if (at < 0) return;
    this.slots[at]!.adapter = undefined;
    this.slots.unshift(...this.slots.splice(at, 1));
  }

  private vacate(): Slot {
    const unused = this.slots.find(({ adapter }) => !adapter);
    if (unused) return unused;
    if (this.slots.length >= this.most) return this.slots[0]!;
    const { device, config } = this.base.weights;
    const slot = { weights: new StoredWeights(device, config, { label: "folded weights" }) };
    this.slots.push(slot);
    return slot;
  }

  release(): void {
    for (const { weights } of this.slots) weights.release();
    this.slots.length = 0;
  }
}
