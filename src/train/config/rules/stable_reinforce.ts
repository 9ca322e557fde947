/** Rules of the loss `stable_reinforce`, which is computed from what was recorded at sampling: on this machine, or by a Tinker service. */
import type { Finding, Rule } from "./rules.ts";

type Read = Parameters<Rule["check"]>[0];

const STABLE = "stable_reinforce";
const LOSS = "rllm.algorithm.loss_fn";
const ROLES = "rllm.algorithm.traj_group_adv_estimator_map";

/** Whether a run, or one of its roles, trains with the loss. */
export function trainsStably(read: Read): boolean {
  const roles = Object.values((read(ROLES) ?? {}) as Readonly<Record<string, unknown>>);
  return [read(LOSS), ...roles.map(lossOf)].includes(STABLE);
}

/** Returns the loss of `rloo`, `[rloo, cispo]` or `{loss_fn: cispo}`. */
function lossOf(entry: unknown): string | undefined {
  if (Array.isArray(entry)) return entry[1];
  return (entry as { loss_fn?: string } | null)?.loss_fn;
}

/** A setting that the loss cannot have, with what is wrong and what to do. */
interface Clash {
  readonly path: string;
  readonly clashes: (value: unknown) => boolean;
  readonly why: string;
}

const FROM_OTHERS = "the loss needs samples from the whole distribution";

/** Clashes of a service. */
const WIRE_CLASHES: readonly Clash[] = [
  {
    path: "tinker_wire",
    clashes: (value) => value === "json",
    why: "the protocol's JSON has no provenance of tokens. Set tinker_wire=protobuf",
  },
];

const CLASHES: readonly Clash[] = [
  { path: "rllm.rollout.train.top_p", clashes: (value) => Number(value) < 1, why: `${FROM_OTHERS}. Set it to 1` },
  { path: "rllm.rollout.train.top_k", clashes: (value) => Number(value) > 0, why: `${FROM_OTHERS}. Set it to -1` },
  {
    path: "rllm.rollout.train.temperature",
    clashes: (value) => value === 0,
    why: "a greedy sample has no gradient under the loss. Set it to 1",
  },
  {
    path: "rllm.algorithm.kl_beta",
    clashes: (value) => Number(value) > 0,
    why: "the loss is taken without a KL term to the reference. Set it to 0; rllm.algorithm.loss_args.kl_coeff holds the policy to its sampler",
  },
  {
    path: "rllm.algorithm.entropy_coeff",
    clashes: (value) => Number(value) !== 0,
    why: "the loss is taken without an entropy bonus. Set it to 0",
  },
];

function clashOf(read: Read, clashes: readonly Clash[]): Finding | undefined {
  const clash = trainsStably(read) ? clashes.find(({ path, clashes }) => clashes(read(path))) : undefined;
  if (!clash) return undefined;
  const { path, why } = clash;
  return { severity: "error", path, message: `Cannot train with ${STABLE} and ${path}=${read(path)}: ${why}.` };
}

export const STABLE_RULES: readonly Rule[] = [
  { backends: ["tinker"], check: (read) => clashOf(read, [...WIRE_CLASHES, ...CLASHES]) },
  { backends: ["local"], check: (read) => clashOf(read, CLASHES) },
  {
    backends: ["verl", "trinity"],
    check: (read) =>
      trainsStably(read)
        ? {
            severity: "error",
            path: LOSS,
            message: `Cannot train with ${LOSS}=${STABLE} here: the loss needs what is recorded at sampling. Set rllm/backend=local, or tinker with a service that has the loss, or choose importance_sampling, cispo or gspo.`,
          }
        : undefined,
  },
];
