/** Contents of device memory in the terms of a plan, from the labels of the buffers. */
import type { Peak } from "../../../../engine/compute/counting.ts";

/** Parts in the order in which people read them; `activations` is what no other part is. */
const PARTS: readonly (readonly [part: string, labels: RegExp])[] = [
  ["weights", /^(weights|rope angles)/],
  ["folded_weights", /^folded weights/],
  ["reference_weights", /^reference weights/],
  ["critic_weights", /^critic weights/],
  ["reward_model_weights", /^reward model weights/],
  ["teacher_weights", /^teacher weights/],
  ["published_weights", /^(copied|frozen) weights/],
  ["adapter", /^adapter/],
  ["gradients", /^gradients/],
  ["moments", /^(first|second) moments/],
  ["kv_cache", /cache/],
  ["logits", /^logits/],
];

export type Parts = Readonly<Record<string, number>>;

/** Bytes by part; they add up to the peak's. */
export function partsOf({ byLabel }: Peak): Parts {
  const sums = new Map<string, number>();
  for (const [label, bytes] of byLabel) {
    const part = PARTS.find(([, labels]) => labels.test(label))?.[0] ?? "activations";
    sums.set(part, (sums.get(part) ?? 0) + bytes);
  }
  const names = [...PARTS.map(([name]) => name), "activations"];
  return Object.fromEntries(names.filter((name) => sums.has(name)).map((name) => [name, sums.get(name)!]));
}

/** The bytes of some parts together. */
export function partBytes(parts: Parts, ...names: readonly string[]): number {
  return names.reduce((sum, name) => sum + (parts[name] ?? 0), 0);
}
