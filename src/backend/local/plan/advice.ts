/** What to change where a run does not fit, each piece of advice verified by planning with it. */
import { LORA_DEFAULTS } from "../../../model/lora.ts";
import { planRun } from "./plan.ts";
import type { PlanRequest } from "./rehearsal.ts";

/** A change of settings, as it is written on the command line. */
interface Change {
  readonly set: string;
  readonly request: PlanRequest;
}

/** What to try, the most useful first: undefined where it would change nothing. */
const CHANGES: readonly ((request: PlanRequest) => Change | undefined)[] = [
  trainAdapter,
  chooseByFit,
  narrowCache,
  shorterReplies(2),
  shorterReplies(4),
  smallerRank,
];

/** Rank of the adapter that is advised instead of training all weights. */
const ADVISED_RANK = 16;
const SMALL_RANK = 8;
const LEAST_REPLY_TOKENS = 64;

/**
 * Settings that make the run fit: those that do so alone, else the first that do so together; none where no settings do.
 * In the form of overrides, `model.lora_rank=16`.
 */
export async function adviceFor(request: PlanRequest): Promise<string[]> {
  const alone: string[] = [];
  for (const change of changesOf(request)) if (await fitsAtLeast(change.request)) alone.push(change.set);
  return alone.length > 0 ? alone : await adviceTogether(request);
}

function changesOf(request: PlanRequest): Change[] {
  return CHANGES.flatMap((change) => change(request) ?? []);
}

async function adviceTogether(request: PlanRequest): Promise<string[]> {
  const sets: string[] = [];
  let changed = request;
  for (const change of CHANGES) {
    const next = change(changed);
    if (!next) continue;
    sets.push(next.set);
    changed = next.request;
    if (sets.length > 1 && (await fitsAtLeast(changed))) return [sets.join(" ")];
  }
  return [];
}

/** Whether the run fits with the smallest passes and one sequence at a time, or with what the settings fix. */
async function fitsAtLeast({ options, ...request }: PlanRequest): Promise<boolean> {
  const { gradientCheckpointing = "auto", maxTokensPerPass = 1, cache } = options;
  const smallest = {
    ...options,
    maxTokensPerPass,
    gradientCheckpointing: gradientCheckpointing === "auto" ? true : gradientCheckpointing,
    cache: { maxSequences: 1, ...cache },
  };
  return (await planRun({ ...request, options: smallest })).fits;
}

function trainAdapter(request: PlanRequest): Change | undefined {
  if (request.options.lora || !request.shape.isTrained) return undefined;
  const lora = { ...LORA_DEFAULTS, rank: ADVISED_RANK };
  return { set: `model.lora_rank=${ADVISED_RANK}`, request: { ...request, options: { ...request.options, lora } } };
}

function chooseByFit(request: PlanRequest): Change | undefined {
  const { maxTokensPerPass, gradientCheckpointing, cache } = request.options;
  const sets = [
    ...(gradientCheckpointing === false ? ["training.gradient_checkpointing=auto"] : []),
    ...(maxTokensPerPass === undefined ? [] : ["training.max_tokens_per_pass=null"]),
  ];
  if (sets.length === 0) return undefined;
  const options = { ...request.options, maxTokensPerPass: undefined, gradientCheckpointing: "auto" as const, cache };
  return { set: sets.join(" "), request: { ...request, options } };
}

function narrowCache(request: PlanRequest): Change | undefined {
  const { cache } = request.options;
  if (cache?.dtype === "bfloat16") return undefined;
  const options = { ...request.options, cache: { ...cache, dtype: "bfloat16" as const } };
  return { set: "rollout.kv_cache_dtype=bfloat16", request: { ...request, options } };
}

function shorterReplies(divisor: number): (request: PlanRequest) => Change | undefined {
  return (request) => {
    const replyTokens = Math.floor(request.shape.replyTokens / divisor);
    if (replyTokens < LEAST_REPLY_TOKENS) return undefined;
    const shape = { ...request.shape, replyTokens };
    return { set: `data.max_response_length=${replyTokens}`, request: { ...request, shape } };
  };
}

function smallerRank(request: PlanRequest): Change | undefined {
  const { lora } = request.options;
  if (!lora || (lora.rank ?? LORA_DEFAULTS.rank) <= SMALL_RANK) return undefined;
  const options = { ...request.options, lora: { ...lora, rank: SMALL_RANK } };
  return { set: `model.lora_rank=${SMALL_RANK}`, request: { ...request, options } };
}
