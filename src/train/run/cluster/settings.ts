/** Settings of a cluster: its address, what a job gets there, and where the service for its workers listens. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { CLUSTER_FIELDS } from "../../config/fields/cluster.ts";
import type { ValueOf } from "../../config/fields/field.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";

export interface ClusterSettings {
  /** Absent: as the environment says. */
  readonly address: string | undefined;
  readonly headers: Readonly<Record<string, string>>;
  readonly pip: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly pyExecutable: string | undefined;
  readonly resources: { readonly num_cpus?: number; readonly num_gpus?: number; readonly memory?: number };
  readonly maxFailedShare: number;
  readonly service: { readonly host: string; readonly port: number; readonly url: string | undefined };
}

type Key = keyof typeof CLUSTER_FIELDS & string;

function at<K extends Key>(config: Tree, path: K): ValueOf<typeof CLUSTER_FIELDS, K> {
  return getAt(config, path) as ValueOf<typeof CLUSTER_FIELDS, K>;
}

/** @throws {ConfigError} for a header or a variable that is no text */
export function clusterSettings(config: Tree): ClusterSettings {
  const [num_cpus, num_gpus, memory] = [
    at(config, "ray.entrypoint_num_cpus"),
    at(config, "ray.entrypoint_num_gpus"),
    at(config, "ray.entrypoint_memory"),
  ];
  return {
    address: at(config, "ray.address") ?? undefined,
    headers: texts(config, "ray.headers"),
    pip: at(config, "ray.pip"),
    env: texts(config, "ray.env_vars"),
    pyExecutable: at(config, "ray.py_executable") ?? undefined,
    resources: {
      ...(num_cpus !== null && { num_cpus }),
      ...(num_gpus !== null && { num_gpus }),
      ...(memory !== null && { memory }),
    },
    maxFailedShare: at(config, "ray.max_failed_share"),
    service: {
      host: at(config, "service.host"),
      port: at(config, "service.port"),
      url: at(config, "service.url") ?? undefined,
    },
  };
}

function texts(config: Tree, path: "ray.headers" | "ray.env_vars"): Record<string, string> {
  const entries = Object.entries(at(config, path));
  const other = entries.find(([, value]) => typeof value === "object");
  if (other) throw new ConfigError(`Cannot use ${path}.${other[0]}: it must be a text. Quote it.`, { path });
  return Object.fromEntries(entries.map(([name, value]) => [name, String(value)]));
}
