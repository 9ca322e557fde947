/** The teacher of a run: the one that is given, or the student itself; and the checks before the first step. */
import type { Backend } from "../../../engine/contract/backend.ts";
import type { Teacher } from "../../../engine/contract/teacher.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { promptOf } from "../../task/rollout.ts";
import type { Run, TrainOptions } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";
import { wantedOf } from "./choices.ts";
import { fillPrompt } from "./prompt.ts";
import type { Readers } from "./text_rows.ts";

/** A backend's own policy as a teacher, before training or as it is now. */
export function selfTeacher(backend: Backend, policy: "current" | "reference"): Teacher {
  return {
    name: policy === "current" ? "the student itself" : "the student before training",
    contextLength: backend.model.contextLength,
    logprobs: async (rows, options) => (await backend.logprobs(rows, { policy, ...options })).logprobs,
    ...(backend.topLogprobs && { top: (rows, options) => backend.topLogprobs!(rows, { policy, ...options }) }),
    close: () => {},
  };
}

/**
 * The teacher of a run with distillation.
 * @throws {ConfigError} without one; {UnsupportedError} for one that cannot report what the loss compares
 */
export function chooseTeacher(
  settings: LoopSettings,
  { teacher: teacherOption, backend }: Pick<TrainOptions, "teacher" | "backend">,
): Run["teacher"] {
  const { teacher_kind, teacher_weights, distillation_loss } = settings.distillation;
  const wanted = wantedOf(settings.distillation);
  if (!wanted) return undefined;
  if (wanted === "top" && !settings.distillation.shared_tokenizer)
    throw new UnsupportedError(
      `Cannot distil with loss_mode=${distillation_loss.loss_mode} by text: the teacher's likeliest tokens are of another vocabulary. Set loss_mode=k1 with use_policy_gradient=true, or distillation.shared_tokenizer=true.`,
      { part: "distillation", capability: distillation_loss.loss_mode },
    );
  const openSelf = () => selfTeacher(backend, teacher_weights === "current" ? "current" : "reference");
  const teacher = teacherOption ?? (teacher_kind === "self" ? openSelf() : undefined);
  if (!teacher)
    throw new ConfigError(
      "Cannot distil without a teacher: there is none. Give train() a teacher, or set distillation.teacher_kind=self.",
      { path: "distillation.teacher_kind" },
    );
  if (wanted !== "top" || teacher.top) return teacher;
  throw new UnsupportedError(
    `Cannot distil with loss_mode=${distillation_loss.loss_mode}: ${teacher.name} does not report its likeliest tokens. Take a teacher on this device (distillation.teacher_kind=local), or loss_mode=k1.`,
    { part: "distillation", capability: distillation_loss.loss_mode },
  );
}

/** Tokens that two tokenizers are compared on, when their vocabularies are larger. */
const COMPARED = 2048;
/** Texts of every script, case and kind of space. */
const PROBE = 'The sum of 12 and 345 is 357.\n\tDoes it? Ça va, 你好!  {"a": [1.5]}';

/**
 * Compares the teacher's tokens with the student's, and fills the teacher's prompt of the first task.
 * @throws {ConfigError} that names the first difference
 */
export async function checkTeacher({ teacher, backend, tasks, settings }: TrainOptions): Promise<void> {
  if (!settings?.distillation?.enabled) return;
  const { teacher_prompt, shared_tokenizer = true } = settings.distillation;
  const [first] = tasks.train;
  if (teacher_prompt && first) fillPrompt(teacher_prompt, first);
  if (teacher && !shared_tokenizer) return void readersOf(teacher, backend);
  const { tokenizer } = backend;
  if (!teacher || !tokenizer) return;
  const prompt = first && promptOf(first);
  const texts = [PROBE, ...(typeof prompt === "string" ? [prompt] : [])];
  if (teacher.tokenizer) compareTokenizers(tokenizer, teacher.tokenizer, { name: teacher.name, texts });
  await teacher.check?.(texts.at(-1)!, tokenizer);
}

/**
 * The two tokenizers of a distillation by text.
 * @throws {ConfigError} where one is missing, or its tokens have no bytes of their own
 */
export function readersOf(teacher: Teacher, { tokenizer: student }: Pick<Backend, "tokenizer">): Readers {
  const { name, tokenizer } = teacher;
  const refuse = (whose: string, why: string) =>
    new ConfigError(
      `Cannot distil from ${name} by text: ${whose} tokenizer ${why}. Take a teacher with the student's tokenizer and distillation.shared_tokenizer=true.`,
      { path: "distillation.shared_tokenizer" },
    );
  if (!tokenizer) throw refuse("the teacher's", "is not known (distillation.teacher_tokenizer names its folder)");
  if (!student) throw refuse("the student's", "is not known");
  if (!tokenizer.tokenBytes) throw refuse("the teacher's", "has tokens whose text depends on their neighbours");
  if (!student.tokenBytes) throw refuse("the student's", "has tokens whose text depends on their neighbours");
  return { student, teacher: tokenizer, name };
}

/** @throws {ConfigError} for a text that becomes other tokens, or a token that stands for another text */
function compareTokenizers(
  student: Tokenizer,
  teacher: Tokenizer,
  of: { name: string; texts: readonly string[] },
): void {
  const show = (tokenizer: Tokenizer, id: number) => JSON.stringify(tokenizer.decode([id]));
  const size = Math.min(student.vocabSize, teacher.vocabSize);
  const step = Math.max(1, Math.floor(size / COMPARED));
  for (let id = 0; id < size; id += step)
    if (student.decode([id]) !== teacher.decode([id]))
      throw otherTokens(of.name, {
        what: `token ${id} is ${show(teacher, id)} there and ${show(student, id)} in the student's`,
        sizes: [student.vocabSize, teacher.vocabSize],
      });
  for (const text of of.texts) {
    const studentTokens = tokensOf(student, text);
    // What the student has no tokens for it never samples.
    if (student.decode(studentTokens, { skipSpecialTokens: true }).trim() !== text) continue;
    const other = tokensOf(teacher, text);
    const at = studentTokens.findIndex((id, i) => id !== other[i]);
    if (at < 0 && studentTokens.length === other.length) continue;
    throw otherTokens(of.name, {
      what: `${JSON.stringify(text.slice(0, 40))} has ${other.length} tokens there and ${studentTokens.length} in the student's, the first that differs at place ${at < 0 ? studentTokens.length : at}`,
      sizes: [student.vocabSize, teacher.vocabSize],
    });
  }
}

/** Empty for a text that the vocabulary has no tokens for: one of single characters, for instance. */
function tokensOf(tokenizer: Tokenizer, text: string): readonly number[] {
  try {
    return tokenizer.encode(text);
  } catch {
    return [];
  }
}

function otherTokens(name: string, { what, sizes }: { what: string; sizes: readonly [number, number] }): ConfigError {
  const [student, teacher] = sizes;
  return new ConfigError(
    `Cannot distil from ${name}: its tokenizer is not the student's: ${what} (vocabularies of ${teacher} and ${student} tokens). Set distillation.shared_tokenizer=false to compare texts, take a teacher with the student's tokenizer, or train on its texts: grpu sample, then grpu sft.`,
    { path: "distillation.teacher_models.teacher_model.model_path" },
  );
}
