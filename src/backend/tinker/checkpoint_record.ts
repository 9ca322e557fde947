/** The record that a checkpoint on the service leaves in its folder here. */
import { z } from "zod";
import { ConfigError } from "../../errors.ts";

/** What a checkpoint's folder holds: where the service keeps it. */
const FILE = "tinker.json";

const RECORD = z.object({
  model_id: z.string(),
  base_model: z.string(),
  /** Training state, `tinker://RUN/weights/NAME`. */
  weights: z.string(),
  /** What is sampled from, `tinker://RUN/sampler_weights/NAME`. */
  sampler_weights: z.string(),
  weight_version: z.number().int(),
});

export type CheckpointRecord = z.output<typeof RECORD>;

export async function writeRecord(dir: string, record: CheckpointRecord): Promise<void> {
  const { writeFolder } = await import("../../model/files/disk.ts");
  await writeFolder(dir, [{ name: FILE, content: `${JSON.stringify(record, undefined, 2)}\n` }]);
}

/** @throws {ConfigError} for a folder without a record, or with a damaged one. */
export async function readRecord(dir: string): Promise<CheckpointRecord> {
  const { diskFolder } = await import("../../model/files/disk.ts");
  const { readJson } = await import("../../model/files/reader.ts");
  const read = RECORD.safeParse(await readJson(await diskFolder(dir), FILE));
  if (read.success) return read.data;
  const { path, message } = read.error.issues[0]!;
  const where = path.length > 0 ? ` at ${path.join(".")}` : "";
  throw new ConfigError(
    `Cannot go on from the checkpoint as its record of the service cannot be read${where}: ${message}`,
    { file: `${dir}/${FILE}` },
  );
}
