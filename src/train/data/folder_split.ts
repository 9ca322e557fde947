/** Splits the files of a folder into training and validation, by the names that Hugging Face folders use. */
import type { Split } from "./dataset.ts";

/** @see https://huggingface.co/docs/datasets/repository_structure#automatic-splits */
const KEYWORDS = {
  train: ["train", "training"],
  validation: ["validation", "valid", "val", "dev"],
  test: ["test", "testing", "eval", "evaluation"],
} as const;

type Name = keyof typeof KEYWORDS;

const NAMES = Object.keys(KEYWORDS) as Name[];

/** Split names by preference: a folder without `validation` validates on `test`. */
const WANTED: Readonly<Record<Split, readonly Name[]>> = { train: ["train"], val: ["validation", "test"] };

/**
 * The files of a split, or all files where no name contains a split.
 * @param paths relative to the folder, with forward slashes
 * @returns an empty list when names contain splits, and not the wanted one
 */
export function filesOfSplit(paths: readonly string[], split: Split): readonly string[] {
  const named = new Map(paths.map((path) => [path, splitName(path)]));
  if ([...named.values()].every((name) => name === undefined)) return paths;
  const found = WANTED[split].find((name) => [...named.values()].includes(name));
  return paths.filter((path) => found !== undefined && named.get(path) === found);
}

/** The first part of the path that names a split counts: `train/test_questions.jsonl` is training data. */
function splitName(path: string): Name | undefined {
  const parts = path.replace(/\.[^./]*$/, "").split("/");
  for (const part of parts) {
    const name = NAMES.find((each) => hasKeyword(part, KEYWORDS[each]));
    if (name) return name;
  }
  return undefined;
}

/** Matches whole words: `train-00000-of-00002`, `my_train`, not `trainer`. */
function hasKeyword(part: string, keywords: readonly string[]): boolean {
  const words = part.toLowerCase().split(/[-._ 0-9]+/);
  return keywords.some((keyword) => words.includes(keyword));
}
