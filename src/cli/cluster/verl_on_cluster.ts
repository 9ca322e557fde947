/** Which version of verl a run is made for: the one that the cluster has, as far as its nodes tell. */
import type { NodeAnswer } from "../../backend/ray/probe.ts";
import { VERL_RUN_VERSIONS, type VerlVersion, verlVersion } from "../../backend/verl/versions.ts";
import { ConfigError } from "../../errors.ts";

interface Wanted {
  /** Of the tree of settings that the configuration stands on. */
  readonly tree: string;
  readonly warn: (message: string) => void;
}

/** @throws {ConfigError} for a cluster whose verl has other settings */
export function versionOnCluster(answers: readonly NodeAnswer[], { tree, warn }: Wanted): VerlVersion {
  const composed = verlVersion(tree);
  const found = [...new Set(answers.map(({ versions }) => versions?.verl))].filter((version) => version !== undefined);
  const known = found.filter((version) => version !== null);
  if (found.length > 1)
    warn(`the cluster's nodes have different versions of verl (${found.map((it) => it ?? "none").join(", ")})`);
  const [version] = known;
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
