/** CPUs that verl's processes hold in Ray from their start to the end of a run. */
import { getAt, type Tree } from "../../train/config/yaml/tree.ts";
import type { VerlVersion } from "./versions.ts";

/** CPUs of each GPU's place (`ResourcePoolManager.max_colocate_count`): one for each group of workers that may share it. */
const PER_GPU = 3;

export const STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units";

/**
 * CPUs by what holds them. Ray places these processes one by one, and a job that lacks a CPU for one of them waits without
 * a word.
 */
export function cpusHeld(config: Tree, { hasV1 }: Pick<VerlVersion, "hasV1">): Record<string, number> {
  const number = (path: string) => Number(getAt(config, path));
  const gpus = number("trainer.nnodes") * number("trainer.n_gpus_per_node");
  const places = { "the GPUs' places": gpus * PER_GPU };
  if (!hasV1) return places;
  const isSimple = getAt(config, "transfer_queue.backend.storage_backend") === "SimpleStorage";
  return {
    ...(isSimple && { "TransferQueue's storage": number(STORAGE_UNITS) }),
    "TransferQueue's controller": 1,
    ...places,
  };
}
