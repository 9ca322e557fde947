/** Whether a cluster can run Trinity-RFT: its version, and the GPUs of its nodes. */
import type { NodeAnswer } from "../../../cluster/ray/probe.ts";
import { ConfigError } from "../../../leaves/errors.ts";

interface Wanted {
  /** GPUs that the run needs; absent: no GPUs of the cluster's. */
  readonly gpus: { readonly nodes: number; readonly perNode: number } | undefined;
  /** The version that the run is made for. */
  readonly made: string;
  readonly warn: (message: string) => void;
}

/**
 * @returns the version that the cluster has, or the one that the run is made for
 * @throws {ConfigError} for fewer GPUs than the run divides between rollouts and training
 */
export function trinityOnCluster(answers: readonly NodeAnswer[], { gpus, made, warn }: Wanted): string {
  if (gpus !== undefined) checkGpus(answers, gpus);
  const found = [...new Set(answers.map(({ versions }) => versions?.["trinity-rft"]))].filter(
    (version) => version !== undefined,
  );
  const installed = found.filter((version) => version !== null);
  if (found.length > 1)
    warn(
      `the cluster's nodes have different versions of Trinity-RFT (${found.map((version) => version ?? "none").join(", ")})`,
    );
  const [version] = installed;
  if (version === undefined) {
    if (found.length > 0)
      warn("no node of the cluster has trinity-rft installed as a package; set ray.pip, or use an image with it");
    return made;
  }
  const isSame = version.split(".").slice(0, 2).join(".") === made.split(".").slice(0, 2).join(".");
  if (!isSame) warn(`the cluster has Trinity-RFT ${version}; the run is made for ${made}`);
  return version;
}

/** Checks the GPUs of the nodes. Where a node does not report its GPUs, Trinity itself has to say. */
function checkGpus(answers: readonly NodeAnswer[], { nodes, perNode }: NonNullable<Wanted["gpus"]>): void {
  const reportedGpus = answers.map(({ gpus }) => gpus).filter((gpus) => gpus !== undefined);
  if (reportedGpus.length < answers.length || reportedGpus.filter((gpus) => gpus >= perNode).length >= nodes) return;
  const has = `its nodes have ${reportedGpus.join(", ")} GPUs`;
  throw new ConfigError(
    `Cannot train on the cluster: the run divides ${nodes} x ${perNode} GPUs between rollouts and training, and ${has}. Set trainer.nnodes and trainer.n_gpus_per_node to what the cluster has.`,
    { path: "trainer.n_gpus_per_node" },
  );
}
