/** `tinker.json`: the local record of a checkpoint that the service keeps. */
import { z } from "zod";
import { ConfigError } from "../../../leaves/errors.ts";
import { readAs } from "../../../leaves/shape.ts";

/** The name of the file. */
export const TINKER_RECORD = "tinker.json";

const RECORD = z.object({
  model_id: z.string(),
  base_model: z.string(),
  /** Training state, `tinker://RUN/weights/NAME`. */
  weights: z.string(),
  /** Weights to sample from, `tinker://RUN/sampler_weights/NAME`. */
  sampler_weights: z.string(),
  weight_version: z.number().int(),
});

export type TinkerCheckpoint = z.output<typeof RECORD>;

export async function writeTinkerCheckpoint(dir: string, record: TinkerCheckpoint): Promise<void> {
  const { writeFolder } = await import("../../../engine/model/files/disk.ts");
  await writeFolder(dir, [{ name: TINKER_RECORD, content: `${JSON.stringify(record, undefined, 2)}\n` }]);
}

/** @throws {ConfigError} for a folder without a record, or with a damaged one. */
export async function readTinkerCheckpoint(dir: string): Promise<TinkerCheckpoint> {
  const { diskFolder } = await import("../../../engine/model/files/disk.ts");
  const { readFolderJson } = await import("../../../engine/model/files/reader.ts");
  const read = readAs(RECORD, await readFolderJson(await diskFolder(dir), TINKER_RECORD));
  if ("data" in read) return read.data;
  const { path, rule, value } = read.misfit;
  const where = path === "" ? "" : ` at ${path}`;
  throw new ConfigError(
    `Cannot resume from the checkpoint: its record is damaged${where} (${rule}: ${value}). Resume from another checkpoint.`,
    { file: `${dir}/${TINKER_RECORD}` },
  );
}
