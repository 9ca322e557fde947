/** docs/estimators.md is written from the estimators themselves: `npx vitest run test/engine/algorithm/estimators_page_test.ts -u`. */
import { expect, test } from "vitest";
import type { Estimator } from "../../../src/engine/algorithm/advantage/definition.ts";
import { builtInEstimators } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { code, sourceOf } from "../../fixtures/page_cells.ts";

const HEAD = `# Advantage estimators

Every estimator that \`rllm.algorithm.adv_estimator\` takes, as its file in \`src/engine/algorithm/advantage/estimators/\` says it. The settings go into
\`rllm.algorithm.estimator_args\`, with these defaults. \`scope\` says how far statistics couple rows. The column \`elsewhere\` names the estimator in verl
(\`algorithm.adv_estimator\`) and Trinity-RFT (\`advantage_fn\`). What they are for: [algorithms](algorithms.md); an estimator of your own: [limits](limits.md).

`;

function rowOf({ name, describe, scope, settings, elsewhere: { verl, trinity } = {}, sources }: Estimator): string {
  const given = Object.entries(settings).map(([key, value]) => code(`${key}=${value}`));
  const names = [verl && `verl ${code(verl)}`, trinity && `Trinity-RFT ${code(trinity.name)}`].filter(Boolean);
  const cells = [code(name), describe!, scope, given.join(", "), names.join(", "), sources!.map(sourceOf).join("; ")];
  return `| ${cells.join(" | ").replace(/ +/g, " ")} |\n`;
}

test("docs/estimators.md lists every estimator as it is", async () => {
  const head = "| name | computes | scope | settings | elsewhere | sources |\n| --- | --- | --- | --- | --- | --- |\n";
  const page = HEAD + head + builtInEstimators().map(rowOf).join("");
  await expect(page).toMatchFileSnapshot("../../../docs/estimators.md");
});
