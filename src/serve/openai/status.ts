/** A serving on a status page: its models, what waits, the speed, the device. */
import { bar, compact, escapeHtml, mono, plural, sizeText, table, tile } from "../../leaves/http/status_html.ts";
import type { Serving } from "./serving.ts";

/** Tiles and tables, as HTML. @param sessions open sessions of the gateway in front of it */
export function servingStatus(serving: Serving, { sessions }: { readonly sessions: number }): string {
  const { figures, waiting, pending } = serving;
  const perBatch = figures.batches.total > 0 ? figures.sequences.total / figures.batches.total : 0;
  const failed = [...figures.failures].map(([reason, count]) => `${compact(count)} ${reason}`).join(", ");
  return `<section class="tiles">
${tile(sessions, plural(sessions, "session"))}
${tile(compact(figures.sampledTokens.rate), `tokens/s sampled, ${compact(figures.sampledTokens.total)} in all`)}
${tile(compact(pending - waiting), `running, ${compact(waiting)} queued`)}
${tile(compact(figures.requests.total), `${figures.requests.total === 1 ? "reply" : "replies"}${failed === "" ? "" : `; ${escapeHtml(failed)}`}`)}
${tile(`${compact(meanMs(figures.firstTokenSeconds))} ms`, "to the first token, on average")}
${tile(perBatch.toFixed(1), "sequences a batch")}
</section>
${modelsPart(serving)}
${devicePart(serving)}`;
}

function meanMs({ sum, counts }: Serving["figures"]["firstTokenSeconds"]): number {
  const count = counts.at(-1)!;
  return count === 0 ? 0 : (1000 * sum) / count;
}

function modelsPart({ models }: Serving): string {
  const rows = models.map(({ name, weightVersion, source, pending, waiting }) => [
    mono(name),
    String(weightVersion),
    source.dir === undefined ? '<span class="soft">the base model</span>' : mono(source.dir),
    pending > 0 ? `${pending - waiting} running, ${waiting} queued` : '<span class="soft">idle</span>',
  ]);
  return table("Models", { head: ["Name in requests", "Weights", "From", "State"], rows, none: "None." });
}

function devicePart({ engine, scheduler, figures }: Serving): string {
  const { live, peak, budget } = engine.memory;
  const busy = scheduler.busyMs / Math.max(Date.now() - figures.startedAt, 1);
  return `<h2>Device</h2><section class="card rows">
${bar("Memory", { share: live / budget, text: `${sizeText(live)} of ${sizeText(budget)}, at most ${sizeText(peak)} so far` })}
${bar("Busy since the start", { share: busy, text: `${(busy * 100).toFixed(0)} % · ${escapeHtml(engine.device)}` })}
</section>`;
}
