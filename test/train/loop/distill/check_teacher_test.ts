/** Whether a teacher has the student's tokenizer: tokens that stand for other texts, and texts that become other tokens. */
import { expect, test, vi } from "vitest";
import type { Teacher } from "../../../../src/engine/contract/teacher.ts";
import type { Tokenizer } from "../../../../src/engine/contract/text.ts";
import type { TrainOptions } from "../../../../src/train/loop/contract.ts";
import { checkTeacher } from "../../../../src/train/loop/distill/teacher.ts";
import { loopSettings } from "../../../../src/train/loop/settings.ts";

const SPECIAL = 0;

/** Token 0 is special and written as <s>; `split` says which of the others write a text. */
function tokenizer(words: readonly string[], split: (text: string) => readonly number[] | undefined): Tokenizer {
  return {
    vocabSize: words.length + 1,
    eosTokenIds: [SPECIAL],
    encode(text) {
      const ids = split(text);
      if (!ids) throw new Error("no tokens");
      return [...ids];
    },
    decode: (ids, options) =>
      ids.map((id) => (id !== SPECIAL ? words[id - 1] : options?.skipSpecialTokens ? "" : "<s>")).join(""),
  };
}

const WORDS = ["a", "b", "ab"];
const always = (ids: readonly number[], words = WORDS) => tokenizer(words, (text) => (text === "ab" ? ids : undefined));

async function check(student: Tokenizer, teacher: Tokenizer | undefined, more: Partial<Teacher> = {}) {
  const task = { id: "t", instruction: "ab", metadata: {} };
  await checkTeacher({
    teacher: { name: "the teacher", ...(teacher && { tokenizer: teacher }), ...more } as Teacher,
    backend: { tokenizer: student },
    tasks: { train: [task] },
    settings: loopSettings({ distillation: { enabled: true } }),
  } as unknown as TrainOptions);
}

test.each<[what: string, student: Tokenizer, teacher: Tokenizer, message: RegExp]>([
  [
    "a token that stands for another text",
    always([3]),
    always([3], ["a", "c", "ab"]),
    /token 2 is "c" there and "b" in/,
  ],
  ["other tokens", always([3]), always([1, 2]), /"ab" has 2 tokens there and 1 in the student's, .* at place 0 /],
  ["a special token at the end", always([1, 2]), always([1, 2, SPECIAL]), /3 tokens there and 2 in .* at place 2 /],
  ["fewer tokens", always([SPECIAL, 1, 2]), always([SPECIAL, 3]), /2 tokens there and 3 in .* at place 1 /],
  ["no tokens for a text", always([3]), tokenizer(WORDS, () => undefined), /0 tokens there and 1 in .* at place 0 /],
])("%s is refused", async (_, student, teacher, message) => {
  await expect(check(student, teacher)).rejects.toThrow(
    expect.objectContaining({
      message: expect.stringMatching(message),
      path: "distillation.teacher_models.teacher_model.model_path",
    }),
  );
});

test.each<[what: string, student: Tokenizer, teacher: Tokenizer | undefined]>([
  ["the same tokens", always([SPECIAL, 3]), always([SPECIAL, 3])],
  ["a larger vocabulary of the same beginning", always([1, 2]), always([1, 2], [...WORDS, "c"])],
  ["a text that the student cannot write", tokenizer(WORDS, () => undefined), always([3])],
  ["a text that the student writes otherwise", always([1]), always([3])],
  ["a tokenizer that is not known", always([3]), undefined],
])("%s is not", async (_, student, teacher) => {
  await expect(check(student, teacher)).resolves.toBeUndefined();
});

test("a teacher's own check gets the first task's prompt and the student's tokenizer", async () => {
  const own = vi.fn<NonNullable<Teacher["check"]>>();
  const student = always([3]);
  await check(student, undefined, { check: own });
  expect(own).toHaveBeenCalledExactlyOnceWith("ab", student);
});
