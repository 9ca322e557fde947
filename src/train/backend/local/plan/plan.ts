/**
 * The plan of a run: how many tokens a pass takes, how many sequences are sampled together and whether activations are
 * computed again, so that the run fits the memory budget. Found by running the real code on a device that counts, so that
 * a run that is opened with the plan's options holds what the plan says.
 */
import type { Peak } from "../../../../engine/compute/counting.ts";
import type { LanguageModelOptions } from "../../../../engine/model/language_model.ts";
import { chooseCache, choosePass, sampledTogether } from "./choices.ts";
import { type Parts, partBytes, partsOf } from "./parts.ts";
import { type PlanRequest, Rehearsal } from "./rehearsal.ts";
import { batchTokens } from "./run_shape.ts";

/** Memory by part at the largest moment of a phase. The parts add up to the peak. */
export interface PlanPhase {
  readonly name: "load" | "sampling" | "scoring" | "training";
  readonly peakBytes: number;
  readonly parts: Parts;
}

export interface Plan {
  readonly fits: boolean;
  readonly budget: number;
  /** The largest of the phases' peaks. */
  readonly peakBytes: number;
  readonly tokensPerPass: number;
  readonly gradientCheckpointing: boolean;
  /** Sequences sampled together. */
  readonly slots: number;
  readonly phases: readonly PlanPhase[];
  /** Options with which to open the model. */
  readonly options: LanguageModelOptions;
}

/**
 * Plans a run. What does not fit is as small as it can be: passes of one sequence, sequences one at a time. An adapter
 * that is folded by default is folded only where the copy leaves as many sequences, and passes that are large enough.
 */
export async function planRun(request: PlanRequest): Promise<Plan> {
  const { plan, enough } = await planAsGiven(request);
  const isFolded = plan.phases.some(({ parts }) => parts.folded_weights !== undefined);
  if (!isFolded || request.options.foldAdapter === true) return plan;
  const { plan: beside } = await planAsGiven({ ...request, options: { ...request.options, foldAdapter: false } });
  const leavesEnough = plan.slots >= beside.slots && plan.tokensPerPass >= Math.min(beside.tokensPerPass, enough);
  return plan.fits && leavesEnough ? plan : beside;
}

async function planAsGiven(request: PlanRequest): Promise<{ plan: Plan; enough: number }> {
  const { budget } = request;
  const pass = await choosePass(request);
  const { tokens: tokensPerPass, gradientCheckpointing, enough } = pass;
  const sized = { ...request.options, gradientCheckpointing, maxTokensPerPass: tokensPerPass };
  const sampler = await chooseCache(await Rehearsal.open({ ...request, options: sized }), request);
  const { slots, rows, cacheBytes: bytes } = sampler;
  const cache = { ...(sampler.fits && { bytes }), ...sized.cache, maxSequences: sampler.fits ? rows : 1 };
  const options = { ...sized, cache };
  const phases = await phasesOf({ ...request, options });
  const peakBytes = Math.max(...phases.map((phase) => phase.peakBytes));
  const fits = pass.fits && sampler.fits && peakBytes <= budget;
  const plan = { fits, budget, peakBytes, tokensPerPass, gradientCheckpointing, slots, phases, options };
  return { plan, enough };
}

/** The phases of a run that is opened with these options. */
async function phasesOf(request: PlanRequest & { options: { maxTokensPerPass: number } }): Promise<PlanPhase[]> {
  const { shape, options } = request;
  const rehearsal = await Rehearsal.open(request);
  const { held, longest } = rehearsal;
  // A batch may be smaller than a pass.
  const whole = Math.max(Math.min(options.maxTokensPerPass, batchTokens(shape, longest)), longest);
  // Passes are chosen as if every token were trained on; what a step of whole prompts and replies holds is less.
  const context = Math.min(shape.promptTokens, longest - 1);
  const sampling = await rehearsal.sample(sampledTogether(request));
  const during = (peak: Peak) => (shape.overlaps ? together(peak, { with: sampling, held }) : peak);
  return [
    phase("load", rehearsal.load),
    phase("sampling", sampling),
    phase("scoring", during(await rehearsal.score(whole, context))),
    ...(shape.isTrained ? [phase("training", during(await rehearsal.train(whole, context)))] : []),
  ];
}

function phase(name: PlanPhase["name"], peak: Peak): PlanPhase {
  return { name, peakBytes: peak.bytes, parts: partsOf(peak) };
}

/** Two phases that go on at once, over what both hold. */
function together(peak: Peak, { with: other, held }: { with: Peak; held: Peak }): Peak {
  const byLabel = new Map(peak.byLabel);
  for (const [label, bytes] of other.byLabel)
    byLabel.set(label, (byLabel.get(label) ?? 0) + bytes - (held.byLabel.get(label) ?? 0));
  return { bytes: peak.bytes + other.bytes - held.bytes, byLabel };
}

/** Bytes of parts at the end of a plan, for tables. */
export function planTotals({ phases }: Plan): Record<"weights" | "adapter" | "optimizer" | "kv", number> {
  const last = phases.at(-1)!.parts;
  const sampling = phases.find(({ name }) => name === "sampling")!.parts;
  return {
    weights: partBytes(last, "weights", "folded_weights", "reference_weights", "critic_weights", "published_weights"),
    adapter: partBytes(last, "adapter"),
    optimizer: partBytes(last, "gradients", "moments"),
    kv: partBytes(sampling, "kv_cache"),
  };
}
