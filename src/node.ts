/**
 * Parts of a training program that need a machine: checkpoints and logs in folders, progress on a terminal, the page of
 * a run. They need Node or Deno; everything else of grpu also runs in a page.
 *
 * Stable in 0.x: `FolderCheckpoints`, `ConsoleLogger`, `jsonlFiles`, `ReportFile`, `TensorBoardFile`, and the names and
 * fields of the files that they write. A minor version may change the rest.
 * @module
 */

export { diskFolder } from "./engine/model/files/disk.ts";
export {
  FolderCheckpoints,
  type FolderCheckpointsOptions,
  readCheckpoint,
} from "./train/log/checkpoint/folder_checkpoints.ts";
export { ConsoleLogger } from "./train/log/loggers/console.ts";
export { EpisodeFiles } from "./train/log/loggers/episode_files.ts";
export { GroupsFile, jsonlFiles, MetricsFile, SamplesFile } from "./train/log/loggers/jsonl.ts";
export { ReportFile, type ReportOptions } from "./train/log/loggers/report_file.ts";
export { TensorBoardFile } from "./train/log/loggers/tensorboard.ts";
export { openWandb, type WandbOptions } from "./train/log/loggers/wandb.ts";
