/** Whether a cluster can run verl: its version, and the CPUs of its nodes. */
import type { NodeAnswer } from "../../../cluster/ray/probe.ts";
import type { JobPlan } from "../../../cluster/ray/trainer.ts";
import { STORAGE_UNITS } from "../../../cluster/verl/cpus.ts";
import { VERL_RUN_VERSIONS, type VerlVersion, verlVersion } from "../../../cluster/verl/versions.ts";
import { ConfigError } from "../../../leaves/errors.ts";

interface Wanted {
  /** Name of the tree of settings that the configuration stands on. */
  readonly tree: string;
  readonly warn: (message: string) => void;
}

/**
 * The version that a run is made for: the one that the cluster has, as far as its nodes tell.
 * @throws {ConfigError} for a cluster whose verl has other settings
 */
export function versionOnCluster(answers: readonly NodeAnswer[], { tree, warn }: Wanted): VerlVersion {
  const composed = verlVersion(tree);
  const found = [...new Set(answers.map(({ versions }) => versions?.verl))].filter((version) => version !== undefined);
  const installed = found.filter((version) => version !== null);
  if (found.length > 1)
    warn(
      `the cluster's nodes have different versions of verl (${found.map((version) => version ?? "none").join(", ")})`,
    );
  const [version] = installed;
  if (version === undefined) {
    if (found.length > 0)
      warn("no node of the cluster has verl installed as a package; set ray.pip, or use an image with verl");
    return composed;
  }
  if (!VERL_RUN_VERSIONS.includes(version)) {
    warn(
      `the cluster has verl ${version}, which is not known here (${VERL_RUN_VERSIONS.join(", ")}); the run is made for ${composed.name}`,
    );
    return composed;
  }
  const there = verlVersion(version);
  if (there.tree === composed.tree) return there;
  throw new ConfigError(
    `Cannot train on the cluster: it has verl ${version}, and the settings are those of ${composed.name}. Choose its tree with verl=${there.tree}.`,
    { kind: "config" },
  );
}

/** @throws {ConfigError} for a cluster with fewer CPUs than the run's processes hold: its job would wait for ever */
export function checkCpus(answers: readonly NodeAnswer[], { cpus = {}, job }: Pick<JobPlan, "cpus" | "job">): void {
  const reportedCpus = answers.map((each) => each.cpus).filter((each) => each !== undefined);
  const held = Object.entries({ ...cpus, "the job's command": job.resources?.num_cpus ?? 0 }).filter(([, n]) => n > 0);
  const sum = (numbers: readonly number[]) => numbers.reduce((total, each) => total + each, 0);
  const [wants, has] = [sum(held.map(([, n]) => n)), sum(reportedCpus)];
  // A node that does not tell its CPUs may have enough.
  if (reportedCpus.length < answers.length || has >= wants) return;
  const parts = held.map(([what, n]) => `${what} ${n}`).join(", ");
  const path = job.metadata.verl?.startsWith("0.8") ? "trainer.n_gpus_per_node" : STORAGE_UNITS;
  throw new ConfigError(
    `Cannot train on the cluster: verl's processes hold ${wants} CPUs (${parts}), its nodes have ${has}, and Ray would let the job wait for ever. Add CPUs, or lower ${path}.`,
    { path },
  );
}
