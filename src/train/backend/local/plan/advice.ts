/** Advice for a run that does not fit, each piece verified by planning with it. */
import { LORA_DEFAULTS } from "../../../../engine/model/lora.ts";
import { fitsAtLeast } from "./choices.ts";
import type { PlanRequest } from "./rehearsal.ts";

/** A change of settings, as it is written on the command line. */
interface Change {
  readonly set: string;
  readonly request: PlanRequest;
}

/** Undefined where it would change nothing. */
type Try = (request: PlanRequest) => Change | undefined;

/** Changes to try, the most useful first. */
const TRIES: readonly Try[] = [
  chooseFold,
  trainAdapter,
  quantize,
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
 * Settings that make the run fit: those that do so alone, else the fewest of the most useful that do so together; none where
 * no settings do. In the form of overrides, `model.lora_rank=16`.
 */
export async function adviceFor(request: PlanRequest): Promise<string[]> {
  const alone: string[] = [];
  for (const attempt of TRIES) if (await fitsWith([attempt], request)) alone.push(changed(request, [attempt]).set);
  return alone.length > 0 ? alone : adviceTogether(request);
}

async function adviceTogether(request: PlanRequest): Promise<string[]> {
  if (!(await fitsWith(TRIES, request))) return [];
  let needed = TRIES;
  for (const attempt of [...TRIES].reverse()) {
    const others = needed.filter((other) => other !== attempt);
    if (await fitsWith(others, request)) needed = others;
  }
  return [changed(request, needed).set];
}

async function fitsWith(tries: readonly Try[], request: PlanRequest): Promise<boolean> {
  const change = changed(request, tries);
  return change.set !== "" && fitsAtLeast(change.request);
}

/** All changes in turn; of two for one setting the later counts. */
function changed(request: PlanRequest, tries: readonly Try[]): Change {
  const sets = new Map<string, string>();
  let now = request;
  for (const attempt of tries) {
    const change = attempt(now);
    if (!change || isFixed(change, request)) continue;
    now = change.request;
    for (const set of change.set.split(" ")) sets.set(settingOf(set), set);
  }
  return { set: [...sets.values()].join(" "), request: now };
}

function isFixed({ set }: Change, { fixedSettings }: PlanRequest): boolean {
  return fixedSettings === "all" || set.split(" ").some((each) => fixedSettings?.includes(settingOf(each)));
}

function settingOf(set: string): string {
  return set.slice(0, set.indexOf("="));
}

function chooseFold(request: PlanRequest): Change | undefined {
  if (request.options.foldAdapter !== true) return undefined;
  const options = { ...request.options, foldAdapter: "auto" as const };
  return { set: "model.fold_adapter=auto", request: { ...request, options } };
}

function trainAdapter(request: PlanRequest): Change | undefined {
  if (request.options.lora || !request.shape.isTrained) return undefined;
  const lora = { ...LORA_DEFAULTS, rank: ADVISED_RANK };
  return { set: `model.lora_rank=${ADVISED_RANK}`, request: { ...request, options: { ...request.options, lora } } };
}

function quantize(request: PlanRequest): Change | undefined {
  const { lora, quantization } = request.options;
  if (!lora || quantization === "nf4") return undefined;
  const options = { ...request.options, quantization: "nf4" as const };
  return { set: "model.quantization=nf4", request: { ...request, options } };
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

function shorterReplies(divisor: number): Try {
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
