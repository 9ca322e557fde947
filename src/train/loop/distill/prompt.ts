/** Input of the teacher: the student's rows, or the same replies after a prompt that says more (`teacher_prompt`). */

import { Transcript } from "../../../chat/transcript.ts";
import type { PackedTokens, TopTokens } from "../../../engine/contract/backend.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { offsetsOf } from "../../../engine/packing/offsets.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import { type PackedRows, rowCount } from "../../data/pack.ts";
import type { Episode, Task } from "../../data/types.ts";
import type { StageContext } from "../contract.ts";
import { templateVariables } from "../rollout/attempt.ts";
import type { LoopSettings } from "../settings.ts";

const SETTING = "distillation.teacher_prompt";
/** Key under which a trajectory keeps the tokens of the teacher's prompt. */
const KEY = "teacher_prompt_ids";

/**
 * Gives every trajectory the prompt that the teacher reads in place of its own, where `teacher_prompt` is set, or where the
 * task is a conversation and the teacher writes those in a form of its own.
 */
export function withTeacherPrompts(
  episodes: readonly Episode[],
  { settings, backend, teacher }: Pick<StageContext, "settings"> & Partial<Pick<StageContext, "backend" | "teacher">>,
): readonly Episode[] {
  const { enabled, teacher_prompt, shared_tokenizer } = settings.distillation;
  if (!enabled) return episodes;
  const tokenizer = shared_tokenizer ? backend?.tokenizer : teacher?.tokenizer;
  const isOwn = (task: Task) => !shared_tokenizer && task.messages && tokenizer?.chatTemplate !== undefined;
  return episodes.map((episode) => {
    if (teacher_prompt === null && !isOwn(episode.task)) return episode;
    const ids = promptIds(episode.task, { template: teacher_prompt, settings, tokenizer });
    const trajectories = episode.trajectories.map((each) => ({ ...each, metadata: { ...each.metadata, [KEY]: ids } }));
    return { ...episode, trajectories };
  });
}

function promptIds(
  task: Task,
  {
    template,
    settings,
    tokenizer,
  }: { template: string | null; settings: LoopSettings; tokenizer: Tokenizer | undefined },
): number[] {
  if (!tokenizer)
    throw new ConfigError(`Cannot use ${SETTING}: the backend has no tokenizer. Remove the setting.`, {
      path: SETTING,
    });
  if (!task.messages) return tokenizer.encode(fillPrompt(template ?? "{prompt}", task));
  const last = task.messages.findLastIndex(({ role }) => role === "user");
  const messages = task.messages.map((message, i) =>
    i === last && template !== null ? { ...message, content: fillPrompt(template, task) } : message,
  );
  return [...new Transcript({ tokenizer }).prompt(messages, { variables: templateVariables(settings) }).ids];
}

/**
 * The template with {prompt} as the task's instruction, and {FIELD} as that field of its row, dotted for an inner one.
 * Braces around anything else stay.
 * @throws {ConfigError} for a field that the row lacks
 */
export function fillPrompt(template: string, task: Task): string {
  return template.replaceAll(/\{([A-Za-z_][\w.]*)\}/g, (_, name: string) => {
    const value = name === "prompt" ? task.instruction : fieldAt(task.metadata, name);
    if (typeof value === "string" || typeof value === "number") return String(value);
    const fields = Object.keys(task.metadata).join(", ");
    throw new ConfigError(
      `Cannot fill ${SETTING}: the task ${task.id} has no text or number ${name} (${stringifyJson(value)}). Its row has prompt, ${fields}.`,
      { path: SETTING },
    );
  });
}

function fieldAt(row: unknown, path: string): unknown {
  return path.split(".").reduce((at: unknown, key) => (at as Record<string, unknown> | undefined)?.[key], row);
}

/** Rows as the teacher reads them, and the way back to the student's. */
export interface TeacherRows extends PackedTokens {
  readonly mask: Uint32Array;
  /** Values at the teacher's tokens, at the student's: [T]. */
  atRows(values: Float32Array): Float32Array;
  topAtRows(top: TopTokens): TopTokens;
  /** Trained tokens of the student whose text the teacher scores, where it has a tokenizer of its own. */
  readonly aligned?: number | undefined;
}

/** @throws {ConfigError} for a trajectory without the tokens of the teacher's prompt */
export function teacherRows(rows: PackedRows, settings: LoopSettings): TeacherRows {
  const { offsets, tokens, mask } = rows;
  if (settings.distillation.teacher_prompt === null)
    return { tokens, offsets, mask, atRows: (values) => values, topAtRows: (top) => top };
  const parts = Array.from({ length: rowCount(rows) }, (_, row) => replaced(rows, row));
  const ownOffsets = offsetsOf(parts.map(({ prompt, from, end }) => prompt.length + end - from));
  const source = new Uint32Array(ownOffsets.at(-1)!);
  const asked = { tokens: new Uint32Array(source.length), mask: new Uint32Array(source.length) };
  for (const [row, { prompt, from, end }] of parts.entries()) {
    const reply = ownOffsets[row]! + prompt.length;
    asked.tokens.set(prompt, ownOffsets[row]);
    asked.tokens.set(tokens.subarray(from, end), reply);
    asked.mask.set(mask.subarray(from, end), reply);
    for (let t = from; t < end; t++) source[reply + t - from] = t;
  }
  const moved = <A extends Float32Array | Uint32Array>(values: A, into: A, k: number): A => {
    asked.mask.forEach((bit, t) => {
      if (bit) into.set(values.subarray(t * k, (t + 1) * k), source[t]! * k);
    });
    return into;
  };
  return {
    ...asked,
    offsets: ownOffsets,
    atRows: (values) => moved(values, new Float32Array(tokens.length), 1),
    topAtRows: ({ k, ...top }) => ({
      k,
      tokens: moved(top.tokens, new Uint32Array(tokens.length * k), k),
      logprobs: moved(top.logprobs, new Float32Array(tokens.length * k), k),
    }),
  };
}

/** The teacher's prompt of a row, and the row's tokens [from, end) after its own prompt. */
function replaced(rows: PackedRows, row: number) {
  const { prompt, ...range } = teacherPrompt(rows, row);
  if (prompt) return { prompt, ...range };
  const { uid } = rows.trajectories[rows.trajectoryOfRow[row]!]!;
  throw new ConfigError(
    `Cannot distil the trajectory ${uid}: it has no prompt for the teacher. Group it with the stage group or transform, or remove ${SETTING}.`,
    { path: SETTING },
  );
}

/**
 * Returns the prompt as {@link withTeacherPrompts} left it; undefined where the teacher reads the row's own prompt,
 * [start, from).
 */
export function teacherPrompt(
  { offsets, stepOfToken, trajectories, trajectoryOfRow }: PackedRows,
  row: number,
): { prompt: readonly number[] | undefined; start: number; from: number; end: number } {
  const trajectory = trajectories[trajectoryOfRow[row]!]!;
  const metadataPrompt = trajectory.metadata?.[KEY];
  const start = offsets[row]!;
  const { prompt_ids } = trajectory.steps[stepOfToken[start]!]!;
  const prompt = Array.isArray(metadataPrompt) && metadataPrompt.length > 0 ? (metadataPrompt as number[]) : undefined;
  return { prompt, start, from: start + prompt_ids.length, end: offsets[row + 1]! };
}
