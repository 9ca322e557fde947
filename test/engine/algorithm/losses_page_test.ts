/** docs/losses.md is written from the losses themselves: `npx vitest run test/engine/algorithm/losses_page_test.ts -u`. */
import { expect, test } from "vitest";
import { type LossDefinition, planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { builtInLosses } from "../../../src/engine/algorithm/loss/losses.ts";
import { settingsFor } from "../../fixtures/loss_kernels.ts";
import { code, sourceOf } from "../../fixtures/page_cells.ts";

const HEAD = `# Policy losses

Every loss that \`rllm.algorithm.loss_fn\` takes, as its file in \`src/engine/algorithm/loss/losses/\` says it. A is the advantage, d the log-prob minus the old
log-prob, r = e^d. The settings go into \`rllm.algorithm.loss_args\`, with these defaults. The column \`elsewhere\` names the loss in verl (\`policy_loss.loss_mode\`),
Trinity-RFT (\`policy_loss_fn\`) and Tinker's protocol (\`loss_fn\`). How token losses become one number: [algorithms](algorithms.md#policy-losses); a loss of
your own: [limits](limits.md#loss-functions).

`;

function elsewhereOf({ elsewhere: { verl, trinity, tinker } = {} }: LossDefinition): string {
  const since = verl?.since ? ` since ${verl.since}` : "";
  return [
    verl && `verl ${code(verl.name)}${since}`,
    trinity && `Trinity-RFT ${code(trinity)}`,
    tinker && `Tinker ${code(tinker.name)}`,
  ]
    .filter(Boolean)
    .join(", ");
}

function aggregationOf(loss: LossDefinition): string {
  return loss.loss_agg_mode ? `its own: ${code(loss.loss_agg_mode)}` : code("loss_agg_mode");
}

function metricsOf(loss: LossDefinition): string {
  const { metrics, derived } = planLoss(loss, settingsFor(loss.name));
  const names = [...metrics.filter((name) => name !== null), ...Object.keys(derived?.([0, 0, 0]) ?? {})];
  return names.map(code).join(", ");
}

function rowOf(loss: LossDefinition): string {
  const cells = [
    code(loss.name),
    loss.describe!.replaceAll("|", "\\|"),
    aggregationOf(loss),
    metricsOf(loss),
    elsewhereOf(loss),
    loss.sources!.map(sourceOf).join("; "),
  ];
  return `| ${cells.join(" | ").replace(/ +/g, " ")} |\n`;
}

/** Losses of one system share their settings. */
function settingsTable(losses: readonly LossDefinition[]): string {
  const named = new Map<string, string[]>();
  for (const { name, settings } of losses) {
    const text = Object.entries(settings)
      .map(([key, value]) => code(`${key}=${value}`))
      .join(", ");
    named.set(text, [...(named.get(text) ?? []), code(name)]);
  }
  const rows = [...named].map(([settings, names]) => `| ${names.join(", ")} | ${settings || "none"} |\n`);
  return `\n| losses | settings |\n| --- | --- |\n${rows.join("")}`;
}

test("docs/losses.md lists every loss as it is", async () => {
  const losses = builtInLosses();
  const table = `| name | computes | aggregation | metrics | elsewhere | sources |\n| --- | --- | --- | --- | --- | --- |\n`;
  await expect(HEAD + table + losses.map(rowOf).join("") + settingsTable(losses)).toMatchFileSnapshot(
    "../../../docs/losses.md",
  );
});
