/** `grpu sft`: reads and encodes the rows, trains, writes the report, prints what to do next. */
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { sftSetting } from "../../config/fields/sft.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { Backend } from "../../contract/backend.ts";
import type { PlacedExample, SupervisedExample } from "../../data/supervised.ts";
import { UnsupportedError } from "../../errors.ts";
import { labelled, shortNumber } from "../../log/format.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import { type EncodedRows, encodeRows, type FitOptions } from "../../loop/sft/encode.ts";
import { type SftOptions, sft, totalSftSteps } from "../../loop/sft/sft.ts";
import type { Input, Io } from "../command.ts";
import { deviceOverride, importsOf } from "../options.ts";
import { EXIT_OK, interruptedStatus } from "../process/exit.ts";
import { openBackend } from "../run/backend.ts";
import { commandName, quoted } from "../run/command_line.ts";
import { checkLoggers, openLoggers } from "../run/open_loggers.ts";
import { RunPlace } from "../run/run_place.ts";
import { composeSft, readExamples, type SftComposition, type SftExamples } from "../run/sft_session.ts";
import { readRun, writeReport } from "../run/write_report.ts";
import { sftFarewell } from "./sft_end.ts";
import { summary } from "./train_end.ts";

export async function runSft(input: Input, io: Io): Promise<number> {
  const composed = await composeSft(
    { args: input.args, imports: importsOf(input), overrides: deviceOverride(input) },
    io,
  );
  checkLoggers(composed.config, io);
  const examples = await readExamples(composed);
  const place = await RunPlace.open(composed.config, io);
  try {
    return await runIn(place, { composed, examples, input, io });
  } finally {
    await place.close();
  }
}

interface Begun {
  readonly composed: SftComposition;
  readonly examples: SftExamples;
  readonly input: Input;
  readonly io: Io;
}

async function runIn(place: RunPlace, { composed, examples, input, io }: Begun): Promise<number> {
  const { dir, checkpoints, checkpoint } = place;
  const { backend, device, description, session } = await openBackend(sessionOf(composed, examples), {
    io,
    checkpoint,
  });
  const { config } = session;
  try {
    place.use({ config: composed.sft, added: composed.added });
    const options: SftOptions = {
      backend,
      rows: await encodeAll(examples, { backend, sft: composed.sft, io }),
      settings: settingsFromConfig(config),
      batchTokens: sftSetting(composed.sft, "data.train_batch_tokens") ?? undefined,
      isShuffled: sftSetting(composed.sft, "data.shuffle"),
    };
    const steps = totalSftSteps(options);
    const subtitle = `supervised fine-tuning; ${setting(config, "model.name") ?? "a new model"}; ${description}`;
    announce({ options, description, steps, dir, config, io });
    await place.begin({
      title: setting(config, "rllm.trainer.experiment_name"),
      subtitle,
      ...(device && { memory_budget_bytes: device.memory.budget }),
      total_steps: steps,
      started: new Date().toISOString(),
    });
    const outcome = await sft({
      ...options,
      loggers: openLoggers({ config, dir, io }).map((logger) => place.logger(logger)),
      checkpoints,
      signal: AbortSignal.any([io.signal, place.signal]),
    });
    await place.end({ complete: outcome.isComplete });
    const run = readRun(dir);
    const report = place.hasBegun ? writeReport(config, { dir, run }) : undefined;
    const latest = await checkpoints.latest();
    const model = latest === undefined ? undefined : join(dir, latest);
    const ending = { outcome, dir, model, best: await checkpoints.best(), report, run };
    if (input.options.json) io.out(`${JSON.stringify(summary(ending))}\n`);
    sftFarewell({ ...ending, isChat: examples.train.some(({ example }) => isConversation(example)), input, io });
    return io.signal.aborted ? interruptedStatus(io.signal) : EXIT_OK;
  } finally {
    backend.close();
  }
}

/** Whether the model answers messages, and not a text as it is. */
function isConversation(example: SupervisedExample): boolean {
  return "messages" in example || ("prompt" in example && typeof example.prompt !== "string");
}

/** What opening a model reads of a training run; a new model's characters are those of the examples. */
function sessionOf({ config, isGiven }: SftComposition, { train, val }: SftExamples) {
  const examples = [...train, ...val].map(({ example }) =>
    "text" in example ? { prompt: "", response: example.text } : example,
  );
  return { config, isGiven, environment: {}, tasks: { train: [], val: [] }, examples };
}

interface Encoding {
  readonly backend: Backend;
  readonly sft: Tree;
  readonly io: Io;
}

/** @throws {ConfigError} naming the row that cannot be trained on; {UnsupportedError} for a backend without a tokenizer */
async function encodeAll({ train, val }: SftExamples, { backend, sft, io }: Encoding): Promise<SftOptions["rows"]> {
  const { tokenizer, model } = backend;
  if (!tokenizer)
    throw new UnsupportedError(`Cannot encode the rows: the backend ${backend.name} has no tokenizer.`, {
      part: backend.name,
      capability: "tokenizer",
    });
  const options = {
    tokenizer,
    // The tokenizer's own comes first: generation_config.json may list others before the token that ends a turn.
    eos: tokenizer.eosTokenIds[0] ?? model.eosTokenIds[0],
    trainOn: sftSetting(sft, "data.train_on_what"),
    maxLength: Math.min(sftSetting(sft, "data.max_length"), model.contextLength),
    truncation: sftSetting(sft, "data.truncation"),
  };
  const encode = async (examples: readonly PlacedExample[], what: string) => {
    const encoded = await encodeInTurns(examples, options, io.signal);
    tellChanges(encoded, { what, maxLength: options.maxLength, io });
    return encoded.rows;
  };
  return { train: await encode(train, "training"), val: await encode(val, "held-out") };
}

/** Row after row, so that Ctrl-C acts between them: nothing is written yet. */
async function encodeInTurns(
  examples: readonly PlacedExample[],
  options: FitOptions,
  signal: AbortSignal,
): Promise<EncodedRows> {
  const each: EncodedRows[] = [];
  for (const example of examples) {
    await setImmediate();
    signal.throwIfAborted();
    each.push(encodeRows([example], options));
  }
  const sum = (name: keyof Omit<EncodedRows, "rows">) => each.reduce((total, one) => total + one[name], 0);
  return {
    rows: each.flatMap(({ rows }) => rows),
    truncated: sum("truncated"),
    skipped: sum("skipped"),
    emptied: sum("emptied"),
    unanswered: sum("unanswered"),
  };
}

function tellChanges(
  { truncated, skipped, emptied, unanswered }: EncodedRows,
  { what, maxLength, io }: { what: string; maxLength: number; io: Io },
): void {
  const parts = [
    truncated > 0 && `${truncated} cut`,
    skipped > 0 && `${skipped} left out`,
    emptied > 0 && `${emptied} left out because no token to train on remained`,
  ].filter(Boolean);
  if (parts.length > 0) io.err(`warning: ${what} rows of more than ${maxLength} tokens: ${parts.join(", ")}\n`);
  if (unanswered > 0)
    io.err(`warning: ${unanswered} ${what} rows have an empty reply: they train on the token that ends it alone\n`);
}

interface Announcement {
  readonly options: SftOptions;
  readonly description: string;
  readonly steps: number;
  readonly dir: string;
  readonly config: Tree;
  readonly io: Io;
}

function announce({ options, description, steps, dir, config, io }: Announcement): void {
  const { backend, rows } = options;
  const width = io.isTerminal ? io.columns : Number.POSITIVE_INFINITY;
  const say = (label: string, text: string) => io.err(labelled(label, text, width));
  const tokens = rows.train.reduce((sum, { ids }) => sum + ids.length, 0);
  const trained = rows.train.reduce((sum, { mask }) => sum + mask.reduce((a, b) => a + b, 0), 0);
  say(
    "rows",
    `${rows.train.length} training (${shortNumber(tokens)} tokens, ${shortNumber(trained)} trained on), ${rows.val?.length ?? 0} held out`,
  );
  const size = backend.model.trainableParameters;
  say(
    "model",
    `${setting(config, "model.name") ?? "new"}${size > 0 ? `, ${shortNumber(size)} trainable parameters` : ""}`,
  );
  say("device", description);
  say("run", `${steps} ${steps === 1 ? "step" : "steps"}, written to ${dir}`);
  if (setting(config, "rllm.trainer.logger").some((name) => /^(jsonl|report)$/.test(name)))
    say("watch", `${commandName(io)} view ${quoted(dir)}`);
  io.err("\n");
}
