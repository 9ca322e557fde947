/** The same tasks at the first and at the last validation. */
import type { SampleLine } from "../src/train/log/run_files.ts";
import { data, isMany } from "./data.ts";
import { h, section, table } from "./dom.ts";
import { number } from "./format.ts";

export function sampleSection(): HTMLElement | undefined {
  const { samples } = data.runs[0]!;
  if (isMany() || samples.length === 0) return undefined;
  const [first, last] = [samples[0]!.step, samples.at(-1)!.step];
  const isPair = first !== last;
  const at = (step: number) => samples.filter((sample) => sample.step === step);
  const after = new Map(at(last).map((sample) => [sample.task, sample]));
  const rows = at(first).map((before) =>
    h(
      "tr",
      {},
      h("td", {}, h("div", { class: "more mono" }, before.prompt)),
      answerCell(before),
      isPair ? answerCell(after.get(before.task)) : undefined,
    ),
  );
  const heads = isPair ? [`Before (step ${first})`, `After (step ${last})`] : [`Step ${first}`];
  return section(
    "What it says",
    "The same tasks at the first and at the last validation.",
    table(["Prompt", ...heads], rows, "samples"),
  );
}

function answerCell(sample: SampleLine | undefined): HTMLElement {
  if (!sample) return h("td", {}, "–");
  const { response, reward, is_correct } = sample;
  const kind = is_correct ? "mark right" : "mark";
  const mark = h("span", { class: kind }, reward === null ? "failed" : number(reward));
  return h("td", {}, h("div", { class: "more" }, h("span", { class: "mono" }, response || " "), mark));
}
