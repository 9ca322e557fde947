/** Saving a training client's weights as a checkpoint. */
import { encryptFolder } from "../checkpoint/age.ts";
import type { Checkpoints } from "../checkpoint/checkpoints.ts";
import { type CheckpointKind, type CheckpointPath, checkName, formatPath } from "../checkpoint_path.ts";
import type { TrainingRun } from "./training_run.ts";

/** Destination of a checkpoint, and what is recorded with it. */
export interface SaveTarget {
  readonly kind: CheckpointKind;
  readonly name: string;
  readonly ttlSeconds?: number | undefined;
  readonly overwrite: boolean;
  /** Public keys of age whose owners alone can read the files. Default: everybody who gets them. */
  readonly recipients?: readonly string[] | undefined;
  readonly userMetadata?: Readonly<Record<string, unknown>> | undefined;
}

/** @returns the checkpoint's path. */
export async function saveServedRun(
  run: TrainingRun,
  { checkpoints, to }: { checkpoints: Checkpoints; to: SaveTarget },
): Promise<string> {
  const trainer = run.loaded();
  const path: CheckpointPath = { run: run.name, kind: to.kind, name: checkName(to.name) };
  const optimizer = to.kind === "weights";
  const { recipients = [] } = to;
  await checkpoints.putRun(run.record);
  await checkpoints.save(path, {
    ...to,
    step: trainer.step,
    ...(recipients.length > 0 && { isEncrypted: true }),
    write: async (dir) => {
      await trainer.save(dir, { optimizer });
      if (recipients.length > 0) await encryptFolder(dir, recipients);
    },
  });
  if (optimizer) run.unsavedSteps = 0;
  return formatPath(path);
}
