/** The status page: who trains and samples, what waits, and the speed. One file, which refreshes itself. */

import {
  bar,
  compact,
  escapeHtml,
  mono,
  plural,
  refreshedPage,
  roughDuration,
  sizeText,
  table,
  tile,
} from "../../../leaves/http/status_html.ts";
import type { Counter } from "../activity.ts";
import { formatPath } from "../checkpoint_path.ts";
import type { TinkerService } from "../service.ts";
import type { TrainingRun } from "../train/training_run.ts";

/** @param nonce of the page's script, as in its Content-Security-Policy */
export function statusPage(service: TinkerService, nonce: string): string {
  return refreshedPage({ title: "grpu serve", nonce, content: content(service) });
}

function content(service: TinkerService): string {
  return [
    header(service),
    tiles(service),
    devicePart(service),
    runsPart(service),
    samplersPart(service),
    checkpointsPart(service),
    damagePart(service),
  ].join("\n");
}

function header({ models, activity }: TinkerService): string {
  const parts = models.all.map((model) => {
    const { engine, names } = model;
    const where = models.isLoaded(model) ? engine.device : "not loaded";
    return `<h1>${escapeHtml(nameOf(names[0]!))}</h1>
<p class="soft">${escapeHtml(engine.architecture)}, ${compact(engine.parameters)} parameters, context ${engine.contextLength} tokens · ${escapeHtml(where)}</p>`;
  });
  return `<header><div>${parts.join("\n")}</div>
<p class="soft">up ${roughDuration((Date.now() - activity.startedAt) / 1000)}<br><span class="live">live</span></p></header>`;
}

function tiles({ activity, sessions, policies, futures, runs }: TinkerService): string {
  const waiting = [...runs.values()].reduce((sum, run) => sum + run.queued, 0) + policies.queued;
  const perBatch = activity.batches.total > 0 ? activity.sequences.total / activity.batches.total : 0;
  return `<section class="tiles">
${tile(sessions.size, plural(sessions.size, "session"))}
${tile(rate(activity.sampledTokens), `tokens/s sampled, ${compact(activity.sampledTokens.total)} in all`)}
${tile(rate(activity.trainedTokens), `tokens/s trained, ${compact(activity.trainedTokens.total)} in all`)}
${tile(compact(activity.steps), plural(activity.steps, "optimiser step"))}
${tile(compact(waiting), `requests queued, ${compact(futures.pending)} without a result`)}
${tile(perBatch.toFixed(1), "sequences a batch")}
</section>`;
}

function devicePart({ models, scheduler, policies, activity, limits }: TinkerService): string {
  const { live, peak, budget } = models.memory;
  const busy = scheduler.busyMs / Math.max(Date.now() - activity.startedAt, 1);
  const now = scheduler.current ? `now: ${escapeHtml(scheduler.current.name)}` : "idle";
  return `<h2>Device</h2><section class="card rows">
${bar("Memory", { share: live / budget, text: `${sizeText(live)} of ${sizeText(budget)}, at most ${sizeText(peak)} so far` })}
${bar("Policies to sample from", { share: policies.bytes / limits.policyBytes, text: `${sizeText(policies.bytes)} of ${sizeText(limits.policyBytes)}` })}
${bar("Busy since the start", { share: busy, text: `${(busy * 100).toFixed(0)} % · ${now}` })}
</section>`;
}

function runsPart({ runs }: TinkerService): string {
  const rows = [...runs.values()]
    .reverse()
    .map((run) => [
      mono(run.name),
      run.record.config.rank > 0 ? `LoRA, rank ${run.record.config.rank}` : "all weights",
      run.trainer
        ? `${run.trainer.step}${run.unsavedSteps > 0 ? ` <span class="soft">(${run.unsavedSteps} unsaved)</span>` : ""}`
        : "–",
      stateOf(run),
      `${roughDuration((Date.now() - Date.parse(run.record.lastRequest)) / 1000)} ago`,
    ]);
  return table("Training clients", {
    head: ["Model", "Kind", "Steps", "State", "Last request"],
    rows,
    none: "None.",
  });
}

function stateOf(run: TrainingRun): string {
  if (run.sequence.parkedCount > 0)
    return `<span class="warn">${run.sequence.parkedCount} wait for request ${run.sequence.missing}</span>`;
  if (run.queued > 0) return `${run.queued} queued`;
  return run.trainer ? '<span class="soft">idle</span>' : '<span class="soft">not loaded</span>';
}

function samplersPart({ samplers }: TinkerService): string {
  const newestFirst = [...samplers.values()].reverse();
  const rows = newestFirst.map(({ id, modelPath, source, queue, asked }) => [
    mono(id),
    modelPath ? mono(modelPath) : source.name === id ? "snapshot" : escapeHtml(source.name),
    compact(asked.size),
    queue.lengthFor(source) > 0 ? `${queue.lengthFor(source)} queued` : '<span class="soft">idle</span>',
  ]);
  return table("Samplers", { head: ["Sampler", "From", "Requests", "State"], rows, none: "None." });
}

function checkpointsPart({ checkpoints }: TinkerService): string {
  const rows = checkpoints
    .list()
    .map((record) => [
      mono(formatPath(record)),
      record.kind === "weights" ? "training" : "sampler",
      String(record.step),
      sizeText(record.bytes),
      `${roughDuration((Date.now() - Date.parse(record.time)) / 1000)} ago`,
      record.expiresAt ? `in ${roughDuration((Date.parse(record.expiresAt) - Date.now()) / 1000)}` : "never",
    ]);
  const head = ["Path", "Kind", "Step", "Size", "Saved", "Expires"];
  return table("Checkpoints", { head, rows, none: "None yet." });
}

/** The unreadable parts of the state folder. */
function damagePart({ checkpoints: { damage } }: TinkerService): string {
  if (damage.length === 0) return "";
  const rows = damage.map(({ path, reason }) => [mono(path), `<span class="warn">${escapeHtml(reason)}</span>`]);
  return table("Not readable", { head: ["In the state folder", "Why"], rows, none: "" });
}

/** The last part of a folder's path, or the name as it is. */
function nameOf(model: string): string {
  return model.startsWith("/") || model.startsWith(".") ? (model.split("/").filter(Boolean).at(-1) ?? model) : model;
}

function rate(counter: Counter): string {
  return compact(counter.rate);
}
