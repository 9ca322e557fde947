/** The supervised warm-up of a new model: cross-entropy on worked examples, until there is behaviour to reinforce. */
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";
import { randomStream, STREAM_SEEDS } from "../../leaves/random.ts";
import type { LoopState, Run } from "./contract.ts";
import { type SupervisedBatch, supervisedBatch } from "./sft/batch.ts";
import { encodeExample } from "./sft/encode.ts";
import { supervisedStep } from "./sft/update.ts";

/** Takes one supervised optimiser step. Returns the state after it. */
export async function warmupStep(run: Run, state: LoopState): Promise<LoopState> {
  const { backend, settings, loggers } = run;
  const { steps, learning_rate } = settings.warmup;
  const { beta1, beta2, eps, weight_decay, grad_clip_norm } = settings.training;
  const started = performance.now();
  const batch = exampleBatch(run, state.warmup);
  const params = {
    learning_rate: learning_rate * warmupScale(state.warmup, steps),
    beta1,
    beta2,
    eps,
    weight_decay,
    grad_clip_norm,
  };
  const measured = await supervisedStep(backend, batch, { params });
  const seconds = (performance.now() - started) / 1000;
  const metrics = {
    ...Object.fromEntries(Object.entries(measured).map(([name, value]) => [`warmup/${name}`, value])),
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

/** The batch of warm-up step `number`: examples drawn with replacement, a pure function of the seed. */
function exampleBatch({ backend, settings, examples }: Run, number: number): SupervisedBatch {
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
