/** The JSON records of checkpoints and training runs on disk. */
import { z } from "zod";
import { readAs } from "../../../leaves/shape.ts";
import { CHECKPOINT_KINDS, type CheckpointPath, formatPath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";

/** Limits of user_metadata; characters as JSON. */
export const METADATA_LIMITS = { characters: 64 * 1024, levels: 32 };

/**
 * Checks the metadata of a session, run or checkpoint.
 * @throws Refusal 422 for metadata that is too deep or too long to save.
 */
export function checkMetadata(metadata: unknown): void {
  if (!isShallow(metadata, METADATA_LIMITS.levels))
    throw new Refusal(422, `Cannot accept user_metadata: it is nested deeper than ${METADATA_LIMITS.levels} levels.`);
  const { length } = JSON.stringify(metadata ?? null);
  if (length > METADATA_LIMITS.characters)
    throw new Refusal(
      422,
      `Cannot accept user_metadata: it may have ${METADATA_LIMITS.characters} characters as JSON (${length}).`,
    );
}

function isShallow(value: unknown, levels: number): boolean {
  if (typeof value !== "object" || value === null) return true;
  return levels > 0 && Object.values(value).every((item) => isShallow(item, levels - 1));
}

const metadata = z.record(z.string(), z.unknown()).refine((item) => isShallow(item, METADATA_LIMITS.levels), {
  message: `nested deeper than ${METADATA_LIMITS.levels} levels`,
});
/** ISO 8601. */
const time = z.string().refine((text) => !Number.isNaN(Date.parse(text)), { message: "not a time" });
const count = z.number().int().min(0);

const CHECKPOINT = z.object({
  run: z.string(),
  kind: z.enum(CHECKPOINT_KINDS),
  name: z.string(),
  time,
  expiresAt: time.optional(),
  isPublic: z.boolean(),
  bytes: count,
  step: count,
  userMetadata: metadata.optional(),
  /** The files are encrypted: only their recipients read them. */
  isEncrypted: z.boolean().optional(),
});

const RUN_RECORD = z.object({
  id: z.string(),
  session: z.string(),
  /** The name that the client used. */
  baseModel: z.string(),
  /** Fingerprint of the base model's weights; older servers recorded none. */
  fingerprint: z.string().optional(),
  /** The server that has it; this one holds copies of checkpoints. */
  copiedFrom: z.string().optional(),
  /** The project that the session belonged to. */
  project: z.string().optional(),
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
  if (formatPath(record) !== formatPath(at)) throw new Error(`it is the record of ${formatPath(record).slice(0, 200)}`);
  return record;
}

/** @throws Error with the reason why the text is not the record of this run. */
export function readRunRecord(text: string, id: string): RunRecord {
  const record = readRecord(RUN_RECORD, text);
  if (record.id !== id) throw new Error(`it is the record of ${record.id.slice(0, 200)}`);
  return record;
}

function readRecord<S extends z.ZodObject>(shape: S, text: string): z.output<S> {
  const read = readAs(shape, JSON.parse(text));
  if ("data" in read) return read.data;
  const { path, rule, value } = read.misfit;
  throw new Error(`${path || "it"}: ${rule} (${value})`);
}
