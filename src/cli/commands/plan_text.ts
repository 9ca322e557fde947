/** A plan as text for people and as JSON for programs. */
import { adviceText, gibibytes } from "../../train/backend/local/plan/fit.ts";
import { type Plan, planTotals } from "../../train/backend/local/plan/plan.ts";
import { labelled } from "../../train/log/format.ts";

/** The object that `grpu plan --json` prints. */
export function planJson(plan: Plan, advice: readonly string[]): object {
  const totals = planTotals(plan);
  return {
    fits: plan.fits,
    budget_bytes: plan.budget,
    weights_bytes: totals.weights,
    adapter_bytes: totals.adapter,
    optimizer_bytes: totals.optimizer,
    kv_bytes: totals.kv,
    slots: plan.slots,
    tokens_per_pass: plan.tokensPerPass,
    gradient_checkpointing: plan.gradientCheckpointing,
    phases: plan.phases.map(({ name, peakBytes, parts }) => ({ name, peak_bytes: peakBytes, parts })),
    advice,
  };
}

export function planText(
  plan: Plan,
  {
    advice,
    model,
    device,
    budgetSource,
  }: { advice: readonly string[]; model: string; device: string; budgetSource: string },
): string {
  const { budget, fits, peakBytes, tokensPerPass, gradientCheckpointing, slots } = plan;
  const recomputed = gradientCheckpointing ? ", activations computed again (gradient checkpointing)" : "";
  const lines: readonly (readonly [string, string])[] = [
    ["model", model],
    ["device", device],
    ["budget", `${gibibytes(budget)} (${budgetSource})`],
    ["pass", `${tokensPerPass} tokens${recomputed}`],
    ["sampling", `${slots} ${slots === 1 ? "sequence" : "sequences"} together`],
  ];
  const head = lines.map(([label, text]) => labelled(label.padEnd(10), text, Number.POSITIVE_INFINITY)).join("");
  const verdict = fits
    ? `fits: ${gibibytes(budget - peakBytes)} to spare\n`
    : `does not fit: ${gibibytes(peakBytes - budget)} too much. ${adviceText(advice)}\n`;
  return `${head}\n${phaseTable(plan)}\n${verdict}`;
}

/** Parts down, phases across. */
function phaseTable({ phases }: Plan): string {
  const names = [...new Set(phases.flatMap(({ parts }) => Object.keys(parts)))];
  const row = (label: string, cells: readonly string[]) =>
    `${label.padEnd(20)}${cells.map((cell) => cell.padStart(11)).join("")}\n`;
  const cell = (bytes: number | undefined) => (bytes === undefined ? "" : gibibytes(bytes));
  return [
    row(
      "",
      phases.map(({ name }) => name),
    ),
    ...names.map((name) =>
      row(
        name.replaceAll("_", " "),
        phases.map(({ parts }) => cell(parts[name])),
      ),
    ),
    row(
      "peak",
      phases.map(({ peakBytes }) => gibibytes(peakBytes)),
    ),
  ].join("");
}
