/** The recipe of every training on the rows of files, whatever they hold: reads and encodes them, trains, says what was reached. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import type { Backend } from "../../engine/contract/backend.ts";
import { UnsupportedError } from "../../leaves/errors.ts";
import { TINKER_RECORD } from "../backend/tinker/checkpoint_record.ts";
import type { RowCommand } from "../config/fields/reward_model.ts";
import { sftSetting } from "../config/fields/sft.ts";
import type { Tree } from "../config/yaml/tree.ts";
import type { PlacedRow } from "../data/rows.ts";
import type { PlacedExample, SupervisedExample } from "../data/supervised.ts";
import { shortNumber } from "../log/format.ts";
import type { TrainOutcome } from "../loop/contract.ts";
import { settingsFromConfig } from "../loop/settings_config.ts";
import type { EncodedRow, EncodedRows, FitOptions } from "../loop/sft/encode.ts";
import type { SftOptions } from "../loop/sft/sft.ts";
import { type Left, modelText, valueChange } from "./ending.ts";
import type { RunIo } from "./io.ts";
import type { OpenedTrainer } from "./model/backend.ts";
import { quoted } from "./quoted.ts";
import type { ComposedRun, Line, OpenedRun, Recipe, Watched } from "./recipe.ts";
import type { ModelSession } from "./session.ts";
import { composeRows, type RowComposition, type RowExamples, readExamples } from "./sft_session.ts";

/** The parts of a recipe on rows. E: a row as an example; R: the same as tokens; B: what trains. */
export interface RowTraining<E, R, B extends RowBackend = Backend> {
  /** Name in the report. */
  readonly title: string;
  open<S extends ModelSession>(
    session: S,
    options: { readonly io: RunIo; readonly checkpoint: string | undefined },
  ): Promise<Pick<OpenedTrainer<S, B>, "backend" | "device" | "description" | "session">>;
  /** @throws {ConfigError} naming the file and line of a row that cannot be used */
  read(rows: readonly PlacedRow[]): readonly E[];
  /** The texts of an example. */
  answersOf(example: E): readonly PlacedExample[];
  encode(examples: readonly E[], options: FitOptions): Omit<EncodedRows, "rows"> & { readonly rows: readonly R[] };
  rowsOf(row: R): readonly EncodedRow[];
  start(options: RowRunOptions<R, B>): { readonly steps: number; run(more: Watched): Promise<TrainOutcome> };
  /** Advice on what to do with the model. Default: to chat with it or to sample it. */
  command?(model: string): Line;
}

/** Properties of what trains that encoding and describing a run read. */
export type RowBackend = Pick<Backend, "name" | "model" | "tokenizer" | "close">;

/** Options of every training on rows. */
export interface RowRunOptions<R, B extends RowBackend = Backend>
  extends Pick<SftOptions, "settings" | "batchTokens" | "isShuffled"> {
  readonly backend: B;
  readonly rows: { readonly train: readonly R[]; readonly val: readonly R[] };
  readonly maxLength: number;
}

export interface ComposedRows<E, R, B extends RowBackend> extends ComposedRun, RowComposition {
  readonly training: RowTraining<E, R, B>;
}

export interface RowData<E, R, B extends RowBackend> {
  readonly composed: ComposedRows<E, R, B>;
  readonly examples: RowExamples<E>;
  /** Number of all examples. */
  readonly texts: readonly SupervisedExample[];
}

export interface OpenedRows<E, R, B extends RowBackend> extends OpenedRun {
  readonly data: RowData<E, R, B>;
  readonly backend: B;
}

/**
 * @param it.name of the recipe, its command and its settings
 * @param it.training made of a configuration; @throws {ConfigError} for settings that contradict each other
 */
export function rowRecipe<E, R, B extends RowBackend>({
  name,
  training,
}: {
  readonly name: RowCommand;
  readonly training: (config: Tree) => RowTraining<E, R, B>;
}): Recipe<ComposedRows<E, R, B>, RowData<E, R, B>, OpenedRows<E, R, B>> {
  return {
    name,

    async compose(options, io) {
      const composition = await composeRows(options, { io, base: name });
      return { ...composition, training: training(composition.sft) };
    },

    async read(composed) {
      const { answersOf, read } = composed.training;
      const examples = await readExamples(composed, read);
      const texts = [...examples.train, ...examples.val].flatMap(answersOf).map(({ example }) => example);
      return { composed, examples, texts };
    },

    async open(data, { io, checkpoint, onClose }) {
      const { composed, texts } = data;
      const opened = await composed.training.open(sessionOf(composed, texts), { io, checkpoint });
      const { backend, device, description, session } = opened;
      onClose(() => backend.close());
      const kept = { config: composed.sft, added: composed.added };
      return { data, backend, ...(device && { device }), description, config: session.config, kept };
    },

    async prepare({ data, backend, config, description }, { io }) {
      const { composed, examples, texts } = data;
      const { sft, training: kind } = composed;
      const maxLength = Math.min(sftSetting(sft, "data.max_length"), backend.model.contextLength);
      const rows = await encodeAll(examples, { training: kind, backend, sft, maxLength, io });
      const { steps, run: drive } = kind.start({
        ...{ backend, maxLength, rows },
        settings: settingsFromConfig(config),
        batchTokens: sftSetting(sft, "data.train_batch_tokens") ?? undefined,
        isShuffled: sftSetting(sft, "data.shuffle"),
      });
      const tokens = rows.train.flatMap((row) => kind.rowsOf(row));
      return {
        ...{ steps, drive, title: kind.title },
        parts: [
          ["rows", rowsText(rows, tokens)],
          ["model", modelText(config, backend.model.trainableParameters)],
          ["device", description],
        ],
        conclude: (left) => ({
          reached: reachedBy(left),
          resume: "trainer.resume_mode=auto",
          ...useOf(left, { training: kind, texts }),
        }),
      };
    },
  };
}

function rowsText(rows: Record<"train" | "val", readonly unknown[]>, encoded: readonly EncodedRow[]): string {
  const tokens = encoded.reduce((sum, { ids }) => sum + ids.length, 0);
  const trained = encoded.reduce((sum, { mask }) => sum + mask.reduce((a, b) => a + b, 0), 0);
  return `${rows.train.length} training (${shortNumber(tokens)} tokens, ${shortNumber(trained)} trained on), ${rows.val.length} held out`;
}

function reachedBy({ dir, best, run }: Left): Line[] {
  const lines: Line[] = [];
  const loss = valueChange(run, /^val\/loss$/);
  if (loss) lines.push(["loss", `${loss} on held-out rows`]);
  const preferred = valueChange(run, /^val\/(rewards\/accuracies|accuracy)$/);
  if (preferred) lines.push(["prefers", `${preferred} of held-out pairs as they are chosen`]);
  if (best) lines.push(["best", `${join(dir, best.checkpoint)} (${best.metric} ${best.value.toFixed(3)})`]);
  return lines;
}

interface Used<E, R, B extends RowBackend> {
  readonly training: Pick<RowTraining<E, R, B>, "command">;
  readonly texts: readonly SupervisedExample[];
}

/** Says where the model is, or what to do with it. */
function useOf<E, R, B extends RowBackend>(
  { model }: Left,
  { training, texts }: Used<E, R, B>,
): { saved?: Line; command?: Line } {
  if (model === undefined) return {};
  const record = join(model, TINKER_RECORD);
  if (existsSync(record)) return { saved: ["saved", `on the service; ${record} has the paths`] };
  if (training.command) return { command: training.command(model) };
  // Trained on conversations, it answers messages.
  if (texts.some(isConversation)) return { command: ["chat", `chat --model ${quoted(model)}`] };
  return { command: ["sample", `sample --model ${quoted(model)} --prompt "..."`] };
}

/** Whether the model answers messages, and not a text as it is. */
function isConversation(example: SupervisedExample): boolean {
  return "messages" in example || ("prompt" in example && typeof example.prompt !== "string");
}

/** Returns the parts of a training run that opening a model reads; a new model's characters are those of the examples. */
function sessionOf({ config, isGiven }: RowComposition, texts: readonly SupervisedExample[]) {
  const examples = texts.map((example) => ("text" in example ? { prompt: "", response: example.text } : example));
  return { config, isGiven, environment: {}, tasks: { train: [], val: [] }, examples };
}

interface Encoding<E, R> {
  readonly training: Pick<RowTraining<E, R>, "encode">;
  readonly backend: RowBackend;
  readonly sft: Tree;
  readonly maxLength: number;
  readonly io: RunIo;
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
  { what, maxLength, io }: { what: string; maxLength: number; io: RunIo },
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
