/** The JSON records of checkpoints and training runs on disk, and the tinker:// paths that name them. */
import { z } from "zod";
import { Refusal } from "../protocol/outcome.ts";

export type CheckpointKind = "weights" | "sampler_weights";

/** The parts of a tinker:// path. */
export interface CheckpointPath {
  readonly run: string;
  readonly kind: CheckpointKind;
  readonly name: string;
}

/** Highest number of a training client in its session: nine digits, as in {@link parsePath}. */
export const MOST_MODEL_NUMBER = 999_999_999;
const RUN = /^([A-Za-z0-9][A-Za-z0-9-]{0,63}):train:(\d{1,9})$/;
const RUN_FOLDER = /^train-(\d{1,9})$/;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
/** Limits of user_metadata; characters as JSON. */
export const METADATA_LIMITS = { characters: 64 * 1024, levels: 32 };

/** `tinker://RUN/weights/NAME`. */
export function formatPath({ run, kind, name }: CheckpointPath): string {
  return `tinker://${run}/${kind}/${name}`;
}

/** @throws Refusal 400 for anything but `tinker://RUN/weights/NAME` or `tinker://RUN/sampler_weights/NAME`. */
export function parsePath(path: string): CheckpointPath {
  const [run = "", kind, name = "", ...rest] = path.startsWith("tinker://") ? path.slice(9).split("/") : [];
  const isKind = kind === "weights" || kind === "sampler_weights";
  if (isKind && rest.length === 0 && RUN.test(run) && NAME.test(name)) return { run, kind, name };
  throw new Refusal(
    400,
    `Cannot find the checkpoint: its path must be tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME (${path.slice(0, 200)}).`,
  );
}

/** @throws Refusal 400 for a name that is not a plain file name. */
export function checkName(name: string): string {
  if (isName(name)) return name;
  throw new Refusal(
    400,
    `Cannot save under the name ${JSON.stringify(name.slice(0, 200))}: use 1 to 128 letters, digits, dots, dashes and underscores, starting with a letter or digit.`,
  );
}

export function isName(name: string): boolean {
  return NAME.test(name);
}

/** The folders of a run within the state folder. @throws Refusal 404 for an id of another form. */
export function foldersOfRun(run: string): readonly [session: string, train: string] {
  const [, session, number] = RUN.exec(run) ?? [];
  if (session === undefined)
    throw new Refusal(404, `Cannot find the training run ${run.slice(0, 200)}: no run has that id.`);
  return [session, `train-${number}`];
}

/** The inverse of {@link foldersOfRun}; undefined for folders of another name. */
export function runOfFolders(session: string, train: string): string | undefined {
  const number = RUN_FOLDER.exec(train)?.[1];
  const run = `${session}:train:${number}`;
  return number !== undefined && RUN.test(run) ? run : undefined;
}

/**
 * Checks the metadata of a session, run or checkpoint.
 * @throws Refusal 422 for metadata that is too deep or too long to save.
 */
export function checkMetadata(metadata: unknown): void {
  if (!isShallow(metadata, METADATA_LIMITS.levels))
    throw new Refusal(
      422,
      `Cannot accept user_metadata: it is nested deeper than ${METADATA_LIMITS.levels} levels.`,
    );
  const { length } = JSON.stringify(metadata ?? null);
  if (length > METADATA_LIMITS.characters)
    throw new Refusal(
      422,
      `Cannot accept user_metadata: it may have ${METADATA_LIMITS.characters} characters as JSON (${length}).`,
    );
}

function isShallow(value: unknown, levels: number): boolean {
  if (typeof value !== "object" || value === null) return true;
  return levels > 0 && Object.values(value).every((it) => isShallow(it, levels - 1));
}

const metadata = z.record(z.string(), z.unknown()).refine((it) => isShallow(it, METADATA_LIMITS.levels), {
  message: `nested deeper than ${METADATA_LIMITS.levels} levels`,
});
/** ISO 8601. */
const time = z.string().refine((it) => !Number.isNaN(Date.parse(it)), { message: "not a time" });
const count = z.number().int().min(0);

const CHECKPOINT = z.object({
  run: z.string(),
  kind: z.enum(["weights", "sampler_weights"]),
  name: z.string(),
  time,
  expiresAt: time.optional(),
  isPublic: z.boolean(),
  bytes: count,
  step: count,
  userMetadata: metadata.optional(),
});

const RUN_RECORD = z.object({
  id: z.string(),
  session: z.string(),
  baseModel: z.string(),
  config: z.object({
    rank: count,
    trainUnembed: z.boolean(),
    trainMlp: z.boolean(),
    trainAttn: z.boolean(),
    seed: z.number(),
  }),
  userMetadata: metadata.optional(),
  created: time,
  lastRequest: time,
});

export type CheckpointRecord = Readonly<z.output<typeof CHECKPOINT>>;
/** A training client. */
export type RunRecord = Readonly<z.output<typeof RUN_RECORD>>;

/** @throws Error with the reason why the text is not the record of the checkpoint at this path. */
export function readCheckpointRecord(text: string, at: CheckpointPath): CheckpointRecord {
  const record = readRecord(CHECKPOINT, text);
  if (formatPath(record) !== formatPath(at))
    throw new Error(`it is the record of ${formatPath(record).slice(0, 200)}`);
  return record;
}

/** @throws Error with the reason why the text is not the record of this run. */
export function readRunRecord(text: string, id: string): RunRecord {
  const record = readRecord(RUN_RECORD, text);
  if (record.id !== id) throw new Error(`it is the record of ${record.id.slice(0, 200)}`);
  return record;
}

function readRecord<S extends z.ZodObject>(shape: S, text: string): z.output<S> {
  const parsed = shape.safeParse(JSON.parse(text));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new Error(`${issue!.path.join(".") || "it"}: ${issue!.message}`);
}
