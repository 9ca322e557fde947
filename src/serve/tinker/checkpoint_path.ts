/** The tinker:// paths of checkpoints, and the ids and folders of the runs that they name. */
import { Refusal } from "../../leaves/http/refusal.ts";

/** Weights to train on, to sample from, and to give away in files that others read. */
export const CHECKPOINT_KINDS = ["weights", "sampler_weights", "external_weights"] as const;
export type CheckpointKind = (typeof CHECKPOINT_KINDS)[number];

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

/** `tinker://RUN/weights/NAME`. */
export function formatPath({ run, kind, name }: CheckpointPath): string {
  return `tinker://${run}/${kind}/${name}`;
}

function isKind(name: string | undefined): name is CheckpointKind {
  return CHECKPOINT_KINDS.some((kind) => kind === name);
}

/** @throws Refusal 400 for anything but `tinker://RUN/KIND/NAME` with one of {@link CHECKPOINT_KINDS}. */
export function parsePath(path: string): CheckpointPath {
  const [run = "", kind, name = "", ...rest] = path.startsWith("tinker://") ? path.slice(9).split("/") : [];
  if (isKind(kind) && rest.length === 0 && RUN.test(run) && NAME.test(name)) return { run, kind, name };
  throw new Refusal(
    400,
    `Cannot find the checkpoint: its path must be tinker://RUN/KIND/NAME with the kind ${CHECKPOINT_KINDS.join(", ")} (${path.slice(0, 200)}).`,
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
