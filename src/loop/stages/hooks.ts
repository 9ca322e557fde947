/**
 * Names for a run's own parts of the loop, so that a configuration can choose them. A module given by `--import`
 * registers its own:
 *
 *     import { registerGrouping, registerRejection } from "grpu";
 *     registerGrouping("whole_batch", (episodes) => [ ... ]);              // rllm.algorithm.traj_grouping_hook=whole_batch
 *     registerRejection("hardest", ({ groups }) => groups.slice(0, 8));    // rllm.rejection_sample.mode=hardest
 */
import { ConfigError } from "../../errors.ts";
import type { GroupingHook, RejectionFunction } from "../contract.ts";

interface Registry {
  readonly groupings: Map<string, GroupingHook>;
  readonly rejections: Map<string, RejectionFunction>;
}

// On the global object, so that a user's module reaches the same tables even when it loads a second copy of grpu.
const KEY = Symbol.for("grpu.loop.registry");
const shared = globalThis as unknown as Record<symbol, Registry | undefined>;
shared[KEY] ??= { groupings: new Map(), rejections: new Map() };
const registry: Registry = shared[KEY];

/** Makes a grouping known as `rllm.algorithm.traj_grouping_hook`. The last registration of a name counts. */
export function registerGrouping(name: string, hook: GroupingHook): void {
  registry.groupings.set(name, hook);
}

/** Makes a rejection known as `rllm.rejection_sample.mode`. The last registration of a name counts. */
export function registerRejection(name: string, choose: RejectionFunction): void {
  registry.rejections.set(name, choose);
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function groupingByName(name: string): GroupingHook {
  const path = "rllm.algorithm.traj_grouping_hook";
  return lookUp(registry.groupings, { name, kind: "grouping", path });
}

/** @throws {ConfigError} for a name that nothing registered; lists those known. */
export function rejectionByName(name: string): RejectionFunction {
  return lookUp(registry.rejections, { name, kind: "rejection", path: "rllm.rejection_sample.mode" });
}

export function groupingNames(): string[] {
  return [...registry.groupings.keys()];
}

export function rejectionNames(): string[] {
  return [...registry.rejections.keys()];
}

/** @throws {ConfigError} for a name that is not in the table. */
export function lookUp<V>(
  table: ReadonlyMap<string, V>,
  it: { readonly name: string; readonly kind: string; readonly path: string },
): V {
  const found = table.get(it.name);
  if (found !== undefined) return found;
  const known = [...table.keys()].join(", ") || "none";
  throw new ConfigError(
    `Cannot use the ${it.kind} as nothing registered that name: ${it.name}. Known: ${known}. Register your own in a module given by --import.`,
    { path: it.path },
  );
}
