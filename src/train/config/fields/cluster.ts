/** Settings of runs on a Ray cluster: where it is, what a job gets there, and the service that its workers call back. */
import { dict, float, int, list, str } from "./field.ts";

export const CLUSTER_FIELDS = {
  "ray.address": str(
    null,
    "address of the cluster's dashboard, http://HOST:8265; null = RAY_ADDRESS, else this machine",
    {
      note: "A cluster with token authentication takes RAY_AUTH_TOKEN from the environment.",
    },
  ),
  "ray.headers": dict("further headers of every request to the cluster, for instance of a proxy that authenticates", {
    secret: true,
  }),
  "ray.pip": list([], "packages that the job's environment installs", {
    note: "Empty where verl is part of the cluster's image.",
  }),
  "ray.env_vars": dict("environment variables of the job; everyone who reaches the cluster can read them"),
  "ray.py_executable": str(null, "Python of the job's workers; null = the cluster's own"),
  "ray.entrypoint_num_cpus": float(null, "CPUs that the job's driver reserves; null = it runs on the head node", {
    min: 0,
  }),
  "ray.entrypoint_num_gpus": float(null, "GPUs that the job's driver reserves", { min: 0 }),
  "ray.entrypoint_memory": int(null, "bytes of memory that the job's driver reserves", { min: 0 }),
  "ray.max_failed_share": float(
    0.1,
    "share of the latest rewards and rollouts that may fail before the run is stopped; 1 = no limit",
    {
      min: 0,
      max: 1,
      note: "verl goes on without failed rollouts. Counted over the latest 256, once 32 have ended.",
    },
  ),

  "service.host": str("127.0.0.1", "address on which rewards and agents listen for the cluster's workers", {
    note: "0.0.0.0 for a cluster of other machines.",
  }),
  "service.port": int(0, "port of that service; 0 = a free one", { min: 0, max: 65535 }),
  "service.url": str(null, "base URL under which the cluster's workers reach it; null = http://service.host:PORT"),
} as const;

export const CLUSTER_SECTIONS: Readonly<Record<string, string>> = {
  ray: "The Ray cluster that trains",
  service: "Rewards and agents, which stay in this process",
};
