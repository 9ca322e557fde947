/** Training on the rows of files, whatever they hold: reads and encodes them, trains, writes the report, prints what to do next. */
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import type { RowCommand } from "../../config/fields/reward_model.ts";
import { sftSetting } from "../../config/fields/sft.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { Backend } from "../../contract/backend.ts";
import type { PlacedRow } from "../../data/rows.ts";
import type { PlacedExample, SupervisedExample } from "../../data/supervised.ts";
import { UnsupportedError } from "../../errors.ts";
import { labelled, shortNumber } from "../../log/format.ts";
import type { Run, TrainOutcome } from "../../loop/contract.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import type { EncodedRow, EncodedRows, FitOptions } from "../../loop/sft/encode.ts";
import type { SftOptions } from "../../loop/sft/sft.ts";
import type { Input, Io } from "../command.ts";
import { EXIT_OK, interruptedStatus } from "../process/exit.ts";
import type { OpenedTrainer } from "../run/backend.ts";
import { commandName, quoted } from "../run/command_line.ts";
import { checkLoggers, openLoggers } from "../run/open_loggers.ts";
import { startProfile } from "../run/profiled.ts";
import { RunPlace } from "../run/run_place.ts";
import type { ModelSession } from "../run/session.ts";
import { type RowComposition, type RowExamples, readExamples } from "../run/sft_session.ts";
import { readRun, writeReport } from "../run/write_report.ts";
import { printSftEnd } from "./sft_end.ts";
import { outcomeJson } from "./train_end.ts";

/** A command's training on rows. E: a row as an example; R: the same as tokens; B: what trains. */
export interface RowTraining<E, R, B extends RowBackend = Backend> {
  readonly command: RowCommand;
  /** Title for the report. */
  readonly title: string;
  open<S extends ModelSession>(
    session: S,
    options: { readonly io: Io; readonly checkpoint: string | undefined },
  ): Promise<Pick<OpenedTrainer<S, B>, "backend" | "device" | "description" | "session">>;
  /** @throws {ConfigError} naming the file and line of a row that cannot be used */
  read(rows: readonly PlacedRow[]): readonly E[];
  /** The texts of an example. */
  answersOf(example: E): readonly PlacedExample[];
  encode(examples: readonly E[], options: FitOptions): Omit<EncodedRows, "rows"> & { readonly rows: readonly R[] };
  rowsOf(row: R): readonly EncodedRow[];
  start(options: RowRunOptions<R, B>): { readonly steps: number; run(more: Watched): Promise<TrainOutcome> };
}

/** Parts of a backend that encoding and describing a run reads. */
export type RowBackend = Pick<Backend, "name" | "model" | "tokenizer" | "close">;

/** Options of every training on rows. */
export interface RowRunOptions<R, B extends RowBackend = Backend>
  extends Pick<SftOptions, "settings" | "batchTokens" | "isShuffled"> {
  readonly backend: B;
  readonly rows: { readonly train: readonly R[]; readonly val: readonly R[] };
  readonly maxLength: number;
}

type Watched = Pick<Run, "loggers" | "checkpoints" | "signal" | "onPhase">;

/** Runs a training on the rows that a configuration names. */
export async function runRows<E, R, B extends RowBackend>(
  training: RowTraining<E, R, B>,
  { composed, input, io }: Omit<Begun<E>, "examples">,
): Promise<number> {
  checkLoggers(composed.config, io);
  const examples = await readExamples(composed, training.read);
  const place = await RunPlace.open(composed.config, io);
  try {
    return await runIn(place, training, { composed, examples, input, io });
  } finally {
    await place.close();
  }
}

interface Begun<E> {
  readonly composed: RowComposition;
  readonly examples: RowExamples<E>;
  readonly input: Input;
  readonly io: Io;
}

async function runIn<E, R, B extends RowBackend>(
  place: RunPlace,
  training: RowTraining<E, R, B>,
  { composed, examples, input, io }: Begun<E>,
): Promise<number> {
  const { dir, checkpoints, checkpoint } = place;
  const texts = [...examples.train, ...examples.val].flatMap(training.answersOf).map(({ example }) => example);
  const { backend, device, description, session } = await training.open(sessionOf(composed, texts), {
    io,
    checkpoint,
  });
  const { config } = session;
  try {
    place.use({ config: composed.sft, added: composed.added });
    const maxLength = Math.min(sftSetting(composed.sft, "data.max_length"), backend.model.contextLength);
    const encoding = { training, backend, sft: composed.sft, maxLength, io };
    const options: RowRunOptions<R, B> = {
      ...{ backend, maxLength },
      rows: await encodeAll(examples, encoding),
      settings: settingsFromConfig(config),
      batchTokens: sftSetting(composed.sft, "data.train_batch_tokens") ?? undefined,
      isShuffled: sftSetting(composed.sft, "data.shuffle"),
    };
    const { steps, run: start } = training.start(options);
    const subtitle = `${training.title}; ${setting(config, "model.name") ?? "a new model"}; ${description}`;
    const tokens = options.rows.train.flatMap((row) => training.rowsOf(row));
    announce({ options, tokens, description, steps, dir, config, io });
    await place.begin({
      title: setting(config, "rllm.trainer.experiment_name"),
      subtitle,
      ...(device && { memory_budget_bytes: device.memory.budget }),
      total_steps: steps,
      started: new Date().toISOString(),
    });
    const profiling = startProfile(input, { device, description });
    const outcome = await start({
      ...profiling?.parts,
      loggers: openLoggers({ config, dir, io }).map((logger) => place.logger(logger)),
      checkpoints,
      signal: AbortSignal.any([io.signal, place.signal]),
    });
    await place.end({ complete: outcome.isComplete });
    await profiling?.end(dir, io);
    const run = readRun(dir);
    const report = place.hasBegun ? writeReport(config, { dir, run }) : undefined;
    const latest = await checkpoints.latest();
    const model = latest === undefined ? undefined : join(dir, latest);
    const ending = { outcome, dir, model, best: await checkpoints.best(), report, run };
    if (input.options.json) io.out(`${JSON.stringify(outcomeJson(ending))}\n`);
    printSftEnd({ ...ending, isChat: texts.some(isConversation), command: training.command, input, io });
    return io.signal.aborted ? interruptedStatus(io.signal) : EXIT_OK;
  } finally {
    backend.close();
  }
}

/** Whether the model answers messages, and not a text as it is. */
function isConversation(example: SupervisedExample): boolean {
  return "messages" in example || ("prompt" in example && typeof example.prompt !== "string");
}

/** Returns a session from which a model is opened; a new model's characters are those of the examples. */
function sessionOf({ config, isGiven }: RowComposition, texts: readonly SupervisedExample[]) {
  const examples = texts.map((example) => ("text" in example ? { prompt: "", response: example.text } : example));
  return { config, isGiven, environment: {}, tasks: { train: [], val: [] }, examples };
}

interface Encoding<E, R> {
  readonly training: Pick<RowTraining<E, R>, "encode">;
  readonly backend: RowBackend;
  readonly sft: Tree;
  readonly maxLength: number;
  readonly io: Io;
}

/** @throws {ConfigError} naming the row that cannot be trained on; {UnsupportedError} for a backend without a tokenizer */
async function encodeAll<E, R>(
  { train, val }: RowExamples<E>,
  { training, backend, sft, maxLength, io }: Encoding<E, R>,
): Promise<RowRunOptions<R>["rows"]> {
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
    maxLength,
    truncation: sftSetting(sft, "data.truncation"),
  };
  const encode = async (examples: readonly E[], what: string) => {
    const encoded = await encodeInTurns(examples, (example) => training.encode([example], options), io.signal);
    reportChanges(encoded, { what, maxLength, io });
    return encoded.rows;
  };
  return { train: await encode(train, "training"), val: await encode(val, "held-out") };
}

/** Row after row, so that Ctrl-C acts between them: nothing is written yet. */
async function encodeInTurns<E, R>(
  examples: readonly E[],
  encode: (example: E) => ReturnType<RowTraining<E, R>["encode"]>,
  signal: AbortSignal,
): Promise<ReturnType<RowTraining<E, R>["encode"]>> {
  const each: ReturnType<RowTraining<E, R>["encode"]>[] = [];
  for (const example of examples) {
    await setImmediate();
    signal.throwIfAborted();
    each.push(encode(example));
  }
  const sum = (name: keyof Omit<EncodedRows, "rows">) => each.reduce((total, rows) => total + rows[name], 0);
  return {
    rows: each.flatMap(({ rows }) => rows),
    truncated: sum("truncated"),
    skipped: sum("skipped"),
    emptied: sum("emptied"),
    unanswered: sum("unanswered"),
  };
}

function reportChanges(
  { truncated, skipped, emptied, unanswered }: Omit<EncodedRows, "rows">,
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
  readonly options: { readonly backend: RowBackend } & { readonly rows: Record<"train" | "val", readonly unknown[]> };
  /** Tokens of the training rows. */
  readonly tokens: readonly EncodedRow[];
  readonly description: string;
  readonly steps: number;
  readonly dir: string;
  readonly config: Tree;
  readonly io: Io;
}

function announce({ options, tokens: encoded, description, steps, dir, config, io }: Announcement): void {
  const { backend, rows } = options;
  const width = io.isTerminal ? io.columns : Number.POSITIVE_INFINITY;
  const say = (label: string, text: string) => io.err(labelled(label, text, width));
  const tokens = encoded.reduce((sum, { ids }) => sum + ids.length, 0);
  const trained = encoded.reduce((sum, { mask }) => sum + mask.reduce((a, b) => a + b, 0), 0);
  say(
    "rows",
    `${rows.train.length} training (${shortNumber(tokens)} tokens, ${shortNumber(trained)} trained on), ${rows.val.length} held out`,
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
