/** docs/preference_losses.md is written from the losses themselves: `npx vitest run test/engine/algorithm/preference_page_test.ts -u`. */
import { expect, test } from "vitest";
import type { PreferenceLoss } from "../../../src/engine/algorithm/preference/definition.ts";
import { builtInPreferenceLosses } from "../../../src/engine/algorithm/preference/losses.ts";
import { code, sourceOf } from "../../fixtures/page_cells.ts";

const HEAD = `# Preference losses

Every loss that \`dpo.loss_type\` takes, as its file in \`src/engine/algorithm/preference/losses/\` says it. c and r are the scores of the chosen and the rejected answer,
d = c - r, and s is the logistic function. A setting is written \`dpo.NAME\`, with this default; one that the loss does not have is refused. How they are used:
[preferences](preferences.md#losses).

`;

function scoreOf({ hasReference, isMean }: PreferenceLoss): string {
  return `${isMean ? "mean" : "sum"} of ${hasReference ? "log-ratios to the reference" : "log-probs"}`;
}

function rowOf(loss: PreferenceLoss): string {
  const settings = Object.entries(loss.settings).map(([key, value]) => code(`${key}=${value}`));
  const unit = loss.unit === "pair" ? "pairs" : "labelled rows";
  const cells = [code(loss.name), loss.describe, unit, scoreOf(loss), settings.join(", ")];
  return `| ${[...cells, loss.sources.map(sourceOf).join("; ")].join(" | ")} |\n`;
}

test("docs/preference_losses.md lists every loss as it is", async () => {
  const head =
    "| name | computes | of | score of an answer | settings | sources |\n| --- | --- | --- | --- | --- | --- |\n";
  const page = HEAD + head + builtInPreferenceLosses().map(rowOf).join("");
  await expect(page).toMatchFileSnapshot("../../../docs/preference_losses.md");
});

test("a loss says what each of its settings means", () => {
  for (const { name, settings, describeSettings } of builtInPreferenceLosses())
    expect(Object.keys(settings).sort(), name).toEqual(["beta", ...Object.keys(describeSettings)].sort());
});
