/** How Trinity splits its GPUs: verl samples and trains on the same ones, Trinity on different ones. */
import type { YamlValue } from "../../../train/config/yaml/tree.ts";
import type { Build } from "../build.ts";

type Out = (path: string) => YamlValue | undefined;

const ENGINE = "explorer.rollout_model";

export interface GpuPlan {
  readonly nodes: number;
  readonly perNode: number;
  readonly explorer: number;
  readonly auxiliary: number;
  /** GPUs that are left for the trainer. */
  readonly trainer: number;
}

/** The GPUs of a Trinity configuration; undefined where a number is left to Ray or to the environment. */
export function planOf(out: Out, engines?: number): GpuPlan | undefined {
  const [nodes, perNode] = [Number(out("cluster.node_num") ?? 0), Number(out("cluster.gpu_per_node") ?? 0)];
  const explorer = (engines ?? sizeOf(out, `${ENGINE}.engine_num`)) * gpusPerEngine(out, ENGINE);
  let auxiliary = 0;
  for (let i = 0; out(`explorer.auxiliary_models.${i}.model_path`) !== undefined; i++) {
    const at = `explorer.auxiliary_models.${i}`;
    auxiliary += sizeOf(out, `${at}.engine_num`) * gpusPerEngine(out, at);
  }
  const isTrainer = out("mode") === "train";
  const trainer = nodes * perNode - (isTrainer ? 0 : explorer + auxiliary);
  return nodes * perNode === 0 || Number.isNaN(trainer) ? undefined : { nodes, perNode, explorer, auxiliary, trainer };
}

function gpusPerEngine(out: Out, at: string): number {
  const names = ["tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size"];
  return names.reduce((product, name) => product * sizeOf(out, `${at}.${name}`), 1);
}

function sizeOf(out: Out, path: string): number {
  return Number(out(path) ?? 1);
}

/** Trinity trains on part of one node, or on whole nodes. */
export function usesWholeNodes({ trainer, perNode }: GpuPlan): boolean {
  return trainer <= perNode || trainer % perNode === 0;
}

/**
 * Writes how many engines sample: the fewest that leave the trainer GPUs that it accepts, and that divide its batch
 * if any number does. A value in the profile wins.
 */
export function putEngines(build: Build): void {
  const path = `${ENGINE}.engine_num`;
  if (build.options.profile.has(path)) return;
  const out: Out = (at) => build.options.profile.get(at) ?? build.values.get(at)?.value;
  const single = planOf(out, 1);
  const plans = Array.from({ length: single === undefined ? 0 : single.nodes * single.perNode }, (_, i) =>
    planOf(out, i + 1),
  );
  const fitting = plans.flatMap((plan, i) =>
    plan && plan.trainer > 0 && usesWholeNodes(plan) ? [{ plan, engines: i + 1 }] : [],
  );
  const batch = Number(out("buffer.train_batch_size"));
  const best = fitting.find(({ plan }) => batch % plan.trainer === 0) ?? fitting[0];
  const message = best
    ? `the fewest that leave GPUs to train on (${best.plan.trainer} of ${best.plan.nodes * best.plan.perNode}); choose another in the profile`
    : "Trinity's default; choose another in the profile";
  build.put(path, best?.engines ?? 1, { kind: "computed", message });
}

/** Refuses a split that Trinity refuses. */
export function checkGpus(build: Build, out: Out): void {
  const plan = planOf(out);
  if (plan === undefined) return;
  const { nodes, perNode, explorer, auxiliary, trainer } = plan;
  const sum = `${nodes} x ${perNode} = ${nodes * perNode} GPUs: explorer ${explorer}, auxiliary ${auxiliary}, trainer ${trainer}`;
  const mode = String(out("mode") ?? "both");
  if (out("model.tinker.enable") === true || mode === "train") return;
  if (["explore", "bench", "serve", "colocate"].includes(mode)) {
    const isFull = mode === "colocate" ? nodes * perNode !== 1 || explorer !== 1 : trainer < 0;
    const wants = mode === "colocate" ? "shares one GPU between one engine and the trainer" : "only samples";
    if (isFull)
      build.fail(`Cannot split the GPUs: mode=${mode} ${wants} (${sum}). Change cluster.gpu_per_node or the engines.`);
    return;
  }
  if (trainer < 1) {
    build.fail(
      `Cannot split the GPUs: none is left to train (${sum}). Trinity trains and samples on different GPUs. ` +
        "Give it more (cluster.gpu_per_node), or fewer or smaller engines (engine_num, tensor_parallel_size); one GPU alone takes mode=colocate.",
    );
    return;
  }
  build.check(sum);
  if (!usesWholeNodes(plan)) {
    build.fail(`Cannot split the GPUs: a trainer on several nodes needs whole nodes (${sum}). Change engine_num.`);
  }
  const batch = Number(out("buffer.train_batch_size"));
  if (batch % trainer !== 0) {
    build.check(
      `buffer.train_batch_size=${batch} does not divide by ${trainer} trainer GPUs. Change engine_num or the batch.`,
    );
  }
}
