/** Prints what an evaluation measured: metrics of one model or a table of several, one JSON object, a page. */
import type { EqualAnswers } from "../../train/data/types.ts";
import { evaluationPage } from "../../train/evaluation/page.ts";
import { evaluationReport, taskRows } from "../../train/evaluation/report.ts";
import { validationScores } from "../../train/evaluation/scores.ts";
import type { LoopSettings } from "../../train/loop/settings.ts";
import type { ModelAttempts } from "../../train/run/evaluate_models.ts";
import { writeText } from "../../train/run/files.ts";
import type { Io } from "../command.ts";
import { comparisonTable, scoreLines } from "./scores_text.ts";

export interface PrintOptions {
  readonly io: Io;
  /** Sizes of pass@k and maj@k. */
  readonly sizes: readonly number[];
  /** Whether two answers are one vote of maj@k. */
  readonly equal: EqualAnswers;
  readonly settings: LoopSettings;
  /** Tasks of the evaluation. */
  readonly total: number;
  readonly isJson: boolean;
  /** File of the page. */
  readonly page: string | undefined;
}

/** Scores of an evaluation that was stopped are marked as partial. */
export function printScores(evaluated: readonly ModelAttempts[], options: PrintOptions): void {
  const { io, isJson, sizes, equal, settings, page } = options;
  const models = evaluated.filter(({ episodes }) => episodes.length > 0);
  if (models.length === 0) return;
  const report = evaluationReport(models, { ks: sizes, equal });
  const metrics = models.map(({ episodes }) => validationScores(episodes, settings));
  if (page !== undefined) {
    const shown = shownTasks(models);
    writeText(page, evaluationPage({ ...report, tasks: shown, made: Date.now() }), "page");
    io.err(`${page}: the scores with every attempt\n`);
  }
  const partial = partialMark(evaluated, options);
  if (isJson)
    io.out(
      `${JSON.stringify({ ...partial, ...(models.length === 1 && metrics[0]), ...withMetrics(report, metrics) })}\n`,
    );
  else io.out(models.length === 1 ? scoreLines(metrics[0]!, report.models[0]!) : comparisonTable(report));
  if (partial) io.err(`stopped: these scores cover ${partial.attempts} of ${partial.total} attempts\n`);
}

type Report = ReturnType<typeof evaluationReport>;

function withMetrics({ models, differences }: Report, metrics: readonly Readonly<Record<string, number>>[]) {
  return { models: models.map((each, i) => ({ ...each, metrics: metrics[i] })), differences };
}

function partialMark(evaluated: readonly ModelAttempts[], { io, settings, total }: PrintOptions) {
  if (!io.signal.aborted) return undefined;
  const attempts = evaluated.at(-1)!.episodes.length;
  return { partial: true, attempts, total: total * settings.rollout.n_val };
}

/** A page of more attempts than this is too long for a browser; the first tasks are shown. */
const MOST_SHOWN = 20_000;

function shownTasks(models: readonly ModelAttempts[]) {
  const rows = taskRows(models);
  let shown = 0;
  return rows.filter((row) => {
    shown += row.models.reduce((sum, each) => sum + each.length, 0);
    return shown <= MOST_SHOWN;
  });
}
