/** The teacher's part of the stage `process`: its log-probs of the sampled tokens, or the tokens that it finds likely. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import type { Teacher } from "../../../engine/contract/teacher.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { mean } from "../../../leaves/statistics.ts";
import { type PackedRows, rowCount } from "../../data/pack.ts";
import type { ProcessedRows, StageContext, Staged } from "../contract.ts";
import { wantedOf } from "./choices.ts";
import { type TeacherRows, teacherRows } from "./prompt.ts";
import { readersOf } from "./teacher.ts";
import { textRows } from "./text_rows.ts";

type Scores = Pick<ProcessedRows, "teacherLogprobs" | "teacherTop" | "refLogprobs">;

/**
 * Nothing without distillation. With a KL loss at the sampled tokens, the teacher is the reference of that loss.
 * `teacher_kl` is Tinker's name: the mean of log p_student - log p_teacher over the trained tokens.
 * @throws {ConfigError} for a row that is longer than the teacher's context, and for a log-prob that is not a number
 */
export async function teacherScores(rows: PackedRows, context: StageContext): Promise<Staged<Scores>> {
  const { teacher, settings } = context;
  const wanted = wantedOf(settings.distillation);
  if (!wanted || !teacher) return { value: {}, metrics: {} };
  const temperature = settings.rollout.train.temperature || 1;
  const asked = settings.distillation.shared_tokenizer
    ? teacherRows(rows, settings)
    : textRows(rows, readersOf(teacher, context.backend));
  checkLengths(rows, asked, teacher);
  const options = { temperature, mask: asked.mask, signal: context.signal };
  if (wanted === "top") {
    const { topk } = settings.distillation.distillation_loss;
    const top = await teacher.top!(asked, { ...options, k: topk });
    return { value: { teacherTop: asked.topAtRows(top) }, metrics: {} };
  }
  const logprobs_T = asked.atRows(await teacher.logprobs(asked, options));
  checkNumbers(rows, logprobs_T, teacher);
  const value = wanted === "kl" ? { refLogprobs: logprobs_T } : { teacherLogprobs: logprobs_T };
  return { value, metrics: { ...klMetrics(rows, logprobs_T), ...alignedMetrics(rows, asked) } };
}

/** The share of the trained tokens whose text a teacher with another tokenizer scored. */
function alignedMetrics({ mask }: PackedRows, { aligned }: TeacherRows): Metrics {
  const trained = mask.reduce((sum, bit) => sum + bit, 0);
  return aligned === undefined || trained === 0 ? {} : { "distillation/aligned": aligned / trained };
}

function klMetrics({ mask, rolloutLogprobs }: PackedRows, teacher_T: Float32Array): Metrics {
  const gaps = [...rolloutLogprobs].map((logprob, t) => logprob - teacher_T[t]!).filter((_, t) => mask[t] === 1);
  return gaps.length === 0 ? {} : { teacher_kl: mean(gaps) };
}

function checkLengths(rows: PackedRows, { offsets }: TeacherRows, { name, contextLength }: Teacher): void {
  for (let row = 0; row < rowCount(rows); row++) {
    const length = offsets[row + 1]! - offsets[row]!;
    if (length <= contextLength) continue;
    throw new ConfigError(
      `Cannot distil from ${name}: the trajectory ${uidOf(rows, row)} is longer than its context of ${contextLength} (${length} tokens). Lower rllm.data.max_response_length, or take a teacher with a longer context.`,
      { path: "distillation" },
    );
  }
}

function checkNumbers(rows: PackedRows, logprobs_T: Float32Array, { name }: Teacher): void {
  const wrong = logprobs_T.findIndex((value, t) => rows.mask[t] === 1 && !Number.isFinite(value));
  if (wrong < 0) return;
  const row = rows.offsets.findLastIndex((offset) => offset <= wrong);
  throw new ConfigError(
    `Cannot distil from ${name}: its log-prob of token ${wrong - rows.offsets[row]!} of the trajectory ${uidOf(rows, row)} is not a finite number (${logprobs_T[wrong]}). Check the teacher.`,
    { path: "distillation" },
  );
}

function uidOf({ trajectories, trajectoryOfRow }: PackedRows, row: number): string {
  return trajectories[trajectoryOfRow[row]!]!.uid;
}
