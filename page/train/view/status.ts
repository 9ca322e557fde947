/** Where the run stands: figures, the stage of the step under way, and what the last step did. */
import type { CurveData } from "../../../src/train/log/page/page_data.ts";
import { h } from "../../element.ts";
import { counted, duration, number } from "../../format.ts";
import type { StageName } from "../protocol.ts";
import { recipeNamed } from "../recipes.ts";
import type { RunView } from "../run_view.ts";
import { current, state } from "../state.ts";

export function statusSection(): HTMLElement {
  const { view } = current();
  return h(
    "section",
    { "aria-label": "Progress" },
    h("div", { class: "tiles" }, tiles(view)),
    stageStrip(view),
    view.failure && h("div", { class: "card notes fault", role: "alert" }, h("p", {}, view.failure)),
    view.warnings.length > 0 && view.status !== "idle"
      ? h(
          "div",
          { class: "card notes", role: "status" },
          view.warnings.map((text) => h("p", {}, text)),
        )
      : undefined,
  );
}

function tiles(view: RunView): HTMLElement[] {
  const { metrics, step, totalSteps, phase } = view;
  const entropy = metrics["actor/entropy"];
  const speed = metrics["perf/throughput"];
  const share = totalSteps > 0 ? Math.round((100 * step) / totalSteps) : 0;
  const where = phase === "warmup" ? "warm-up step" : "step";
  return [
    tile(totalSteps > 0 ? `${step} / ${totalSteps}` : "–", stateText(view) ?? where, share),
    tile(fromTo(view.accuracy), "held-out accuracy"),
    tile(fromTo(view.reward), "mean reward"),
    tile(number(entropy), "entropy, nats per token"),
    tile(speed === undefined ? "–" : `${number(speed)}/s`, left(view)),
  ];
}

function stateText({ status, phase, progress }: RunView): string | undefined {
  if (status === "idle") return "not started";
  if (status === "opening") return "opening the device";
  if (status === "pausing") return "pausing after this step";
  if (status === "paused") return "paused between two steps";
  if (status === "ended") return "done";
  if (status === "failed") return "ended with an error";
  if (progress) return `validating: ${progress.done} of ${progress.total}`;
  return phase === "warmup" ? "warm-up steps" : undefined;
}

function left({ totalSteps, step, phase, metrics }: RunView): string {
  const seconds = metrics["time/step"];
  if (phase !== "train" || seconds === undefined || step >= totalSteps) return "tokens";
  return `tokens; ${duration(seconds * (totalSteps - step))} left`;
}

function fromTo(it: CurveData | undefined): (Node | string)[] {
  if (!it) return ["–"];
  if (it.count === 1) return [it.last.toFixed(2)];
  return [it.first.toFixed(2), h("span", { class: "arrow soft" }, "→"), it.last.toFixed(2)];
}

function tile(value: string | readonly (Node | string)[], label: string, share?: number): HTMLElement {
  const bar = share === undefined ? undefined : h("div", { class: "bar" }, h("i", { style: `width:${share}%` }));
  return h("div", { class: "card tile" }, h("b", {}, value), h("span", {}, label), bar);
}

/** The eight stages, in the words of a person who watches. */
const STAGES: readonly (readonly [name: StageName, what: (view: RunView) => string])[] = [
  [
    "generate",
    ({ values }) =>
      `The model writes ${values["rllm.rollout.n"]} answers to each of ${values["rllm.data.train_batch_size"]} prompts, drawing token after token.`,
  ],
  ["transform", () => "Each answer gets its reward. Answers to the same prompt form a group."],
  ["reject", () => "Groups can be left out here. These recipes keep all of them."],
  [
    "batch",
    () =>
      "The tokens of all answers are packed end to end, without padding. Only those that the model drew are trained on.",
  ],
  [
    "process",
    () =>
      "Log-probs of the policy before the update are put beside each token, so that the loss can tell how far it moves.",
  ],
  [
    "advantages",
    ({ values }) =>
      `The estimator ${values["rllm.algorithm.adv_estimator"]} compares each reward with its group: better than expected is above zero.`,
  ],
  ["update", () => "Backwards through the model: tokens of good answers become more likely, those of bad ones less."],
  ["log", () => "What was measured goes to the charts below."],
];

function stageStrip(view: RunView): HTMLElement {
  const items = STAGES.map(([name], i) => {
    const isNow = view.stage === name && view.isStepping;
    return h(
      "li",
      { class: isNow ? "now" : "", "aria-current": isNow ? "step" : undefined },
      h("b", {}, `${i + 1} ${name}`),
      h("span", {}, secondsOf(view, name)),
    );
  });
  return h(
    "div",
    { class: "card stages" },
    h("h3", {}, "One step in eight stages"),
    h("ol", {}, items),
    h("p", { id: "lesson" }, lesson(view)),
  );
}

function secondsOf({ metrics }: RunView, name: string): string {
  const seconds = metrics[`time/${name}`];
  if (seconds === undefined) return "–";
  return seconds < 0.0995 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

const BEFORE = "Validation before the first update: the model answers held-out tasks, which it is never trained on.";

/** A sentence or two about the moment. */
function lesson(view: RunView): string {
  const { status, phase, stage, note } = view;
  const { how, needsModel } = recipeNamed(state.recipe)!;
  if (status === "idle")
    return needsModel && !state.model ? "Give the model's folder, then start." : `${how} Press Start.`;
  if (status === "opening") return "The device is opened, the memory of the run is planned, and the weights are made.";
  if (status === "failed") return "The run ended with an error, which is shown below. Reset it to start again.";
  if (phase === undefined && view.values["warmup.steps"] === "0") return BEFORE;
  if (phase === undefined || phase === "warmup")
    return "Warm-up: supervised steps on worked examples, right and wrong ones alike, until there is behaviour to reinforce. No rewards yet.";
  if (note !== undefined) return note;
  const about = STAGES.find(([name]) => name === stage)?.[1];
  return [lastStep(view), about?.(view)].filter(Boolean).join(" ");
}

/** What the last step did, in figures. */
function lastStep({ groups, metrics, reward }: RunView): string {
  if (!groups || !reward) return BEFORE;
  const attempts = groups.groups.reduce((sum, { rewards }) => sum + rewards.length, 0);
  const teaching = groups.groups.filter(({ rewards }) => new Set(rewards).size > 1).length;
  const kl = metrics["actor/ppo_kl"];
  return (
    `Step ${groups.step}: ${counted(attempts)} answers to ${counted(groups.groups.length)} prompts, mean reward ${number(reward.last)}. ` +
    `A group teaches where its rewards differ: ${counted(teaching)} of ${counted(groups.groups.length)} did.` +
    (kl === undefined ? "" : ` The update moved the policy by a KL of ${number(kl)}.`)
  );
}
