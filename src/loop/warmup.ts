/** The supervised warm-up of a new model: cross-entropy on worked examples, until there is behaviour to reinforce. */
import { encodeConversation, type MaskedConversation } from "../chat/assistant_mask.ts";
import { Transcript } from "../chat/transcript.ts";
import type { Metrics, TrainBatch } from "../contract/backend.ts";
import type { Tokenizer } from "../contract/text.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import { randomStream, STREAM_SEEDS } from "../random.ts";
import type { Example, PromptExample } from "../task/rollout.ts";
import type { LoopState, Run } from "./contract.ts";

/** Takes one supervised optimiser step. Returns the state after it. */
export async function warmupStep(run: Run, state: LoopState): Promise<LoopState> {
  const { backend, settings, loggers } = run;
  const { steps, learning_rate } = settings.warmup;
  const { beta1, beta2, eps, weight_decay, grad_clip_norm } = settings.training;
  const started = performance.now();
  const batch = exampleBatch(run, state.warmup);
  const loss = await backend.forwardBackward(batch, {
    name: "cross_entropy",
    loss_agg_mode: "token-mean",
    settings: {},
    entropy_coeff: 0,
    temperature: 1,
  });
  const rate = learning_rate * warmupScale(state.warmup, steps);
  const optim = await backend.optimStep({
    learning_rate: rate,
    beta1,
    beta2,
    eps,
    weight_decay,
    grad_clip_norm,
  });
  const seconds = (performance.now() - started) / 1000;
  const metrics = {
    ...renamed({ ...loss, ...optim }),
    "time/step": seconds,
    "perf/throughput": batch.tokens.length / seconds,
  };
  const warmup = state.warmup + 1;
  for (const logger of loggers) await logger.log({ phase: "warmup", step: warmup, totalSteps: steps, metrics });
  return { ...state, warmup };
}

/** Length of the learning rate's rise. */
const RISE_STEPS = 20;
/** The learning rate falls to this share, so that noise of the last steps does not dominate the model that RL starts from. */
const LAST_SHARE = 0.05;

/** Factor on `warmup.learning_rate`: a short rise, a constant half, a linear fall. */
function warmupScale(step: number, steps: number): number {
  const fall = Math.min(1, (2 * (steps - step)) / steps);
  return Math.min((step + 1) / Math.min(RISE_STEPS, steps), Math.max(fall, LAST_SHARE));
}

/** `actor/pg_loss` of a supervised step is its cross-entropy: it becomes `warmup/loss`. */
function renamed(metrics: Metrics): Metrics {
  const name = (key: string) => `warmup/${key.replace(/^.*\//, "").replace("pg_loss", "loss")}`;
  return Object.fromEntries(Object.entries(metrics).map(([key, value]) => [name(key), value]));
}

/** The batch of warm-up step `number`: examples drawn with replacement, a pure function of the seed. */
function exampleBatch({ backend, settings, examples }: Run, number: number): TrainBatch {
  const { batch_size, examples: limit } = settings.warmup;
  const { tokenizer } = backend;
  if (!tokenizer) {
    const message = `Cannot warm up: the backend ${backend.name} has no tokenizer. Set warmup.steps=0.`;
    throw new UnsupportedError(message, { part: backend.name, capability: "tokenizer" });
  }
  if (examples.length === 0) {
    const message = "Cannot warm up: the task has no worked examples. Give the rows an answer, or set warmup.steps=0.";
    throw new ConfigError(message, { path: "warmup.steps" });
  }
  const random = randomStream(STREAM_SEEDS.warmup(settings.training.seed, number));
  const choices = Math.min(limit ?? examples.length, examples.length);
  const drawn = Array.from({ length: batch_size }, () => examples[Math.floor(random() * choices)]!);
  // The tokenizer's own comes first: generation_config.json may list others before the token that ends a turn.
  const eos = tokenizer.eosTokenIds[0] ?? backend.model.eosTokenIds[0];
  return supervisedBatch(drawn.map((example) => encodeExample(example, { tokenizer, eos })));
}

function encodeExample(example: Example, it: { tokenizer: Tokenizer; eos: number | undefined }): MaskedConversation {
  if ("messages" in example) return encodeConversation(example.messages, { ...it, tools: example.tools });
  const response = it.tokenizer.encode(example.response, { addSpecialTokens: false });
  const end = it.eos === undefined ? [] : [it.eos];
  const prompt = encodePrompt(example.prompt, it.tokenizer);
  const ids = [...prompt, ...response, ...end];
  return { ids, mask: ids.map((_, i) => Number(i >= prompt.length)) };
}

function encodePrompt(prompt: PromptExample["prompt"], tokenizer: Tokenizer): number[] {
  return typeof prompt === "string" ? tokenizer.encode(prompt) : [...new Transcript({ tokenizer }).prompt(prompt).ids];
}

/** Rows whose masked tokens weigh 1 each. */
export function supervisedBatch(rows: readonly MaskedConversation[]): TrainBatch {
  const offsets = new Uint32Array(rows.length + 1);
  rows.forEach(({ ids }, i) => {
    offsets[i + 1] = offsets[i]! + ids.length;
  });
  const tokens = new Uint32Array(offsets[rows.length]!);
  const mask = new Uint32Array(tokens.length);
  rows.forEach((row, i) => {
    tokens.set(row.ids, offsets[i]);
    mask.set(row.mask, offsets[i]);
    // Nothing comes before a first token.
    if (row.ids.length > 0) mask[offsets[i]!] = 0;
  });
  return {
    offsets,
    tokens,
    mask,
    advantages: { level: "row", values: new Float32Array(rows.length).fill(1) },
    weights: Float32Array.from(mask),
  };
}
