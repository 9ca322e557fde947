/** Files of the package that the page holds: the recipes, their data, and the base configurations. The build reads them as text. */

import local from "../../config/rllm/backend/local.yaml";
import rllmBase from "../../config/rllm/base.yaml";
import unified from "../../config/unified.yaml";
import sumsTrain from "../../examples/arithmetic/arithmetic_train.jsonl";
import sumsVal from "../../examples/arithmetic/arithmetic_val.jsonl";
import sums from "../../examples/arithmetic/run.yaml";
import digitsTrain from "../../examples/digits/digits_train.jsonl";
import digitsVal from "../../examples/digits/digits_val.jsonl";
import digits from "../../examples/digits/run.yaml";
import turnsTasks from "../../examples/multi_turn/guess_digit.jsonl";
import turns from "../../examples/multi_turn/run.yaml";
import stories from "../../examples/stories/run.yaml";
import storiesTrain from "../../examples/stories/stories_prompts.jsonl";
import storiesVal from "../../examples/stories/stories_prompts_val.jsonl";

/** Text by path. */
export const PACKAGED: Readonly<Record<string, string>> = {
  "config/unified.yaml": unified,
  "config/rllm/base.yaml": rllmBase,
  "config/rllm/backend/local.yaml": local,
  "examples/arithmetic/run.yaml": sums,
  "examples/arithmetic/arithmetic_train.jsonl": sumsTrain,
  "examples/arithmetic/arithmetic_val.jsonl": sumsVal,
  "examples/digits/run.yaml": digits,
  "examples/digits/digits_train.jsonl": digitsTrain,
  "examples/digits/digits_val.jsonl": digitsVal,
  "examples/multi_turn/run.yaml": turns,
  "examples/multi_turn/guess_digit.jsonl": turnsTasks,
  "examples/stories/run.yaml": stories,
  "examples/stories/stories_prompts.jsonl": storiesTrain,
  "examples/stories/stories_prompts_val.jsonl": storiesVal,
};
