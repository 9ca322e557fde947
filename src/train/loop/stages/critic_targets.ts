/** Targets of the critic in a step, by token, and how well its values had predicted them. */

import { advantageReader } from "../../../engine/algorithm/advantage/level.ts";
import type { Metrics } from "../../../engine/contract/backend.ts";
import { sampleDeviation, spread } from "../../../leaves/statistics.ts";
import { rowCount } from "../../data/pack.ts";
import type { AdvantageRows, CriticTargets, EstimatedAdvantages, ProcessedRows } from "../contract.ts";
import { AdvantageSpread, type Unit } from "./advantage_spread.ts";

/** A trajectory's return is that of each of its steps. */
const WHOLE = { enable: false, mode: "broadcast", normalize_by_steps: false } as const;

/** Places the returns of units in the rows of a batch. */
export class TargetSpread {
  private readonly rows: ProcessedRows;
  private readonly spread: AdvantageSpread;
  private readonly estimated = new Set<number>();

  constructor(rows: ProcessedRows) {
    this.rows = rows;
    this.spread = new AdvantageSpread(rows);
  }

  /** Places the returns of units. As in verl, an estimator without returns of its own has its advantages for them. */
  put(units: readonly Unit[], { level, values, returns = values }: EstimatedAdvantages): void {
    this.spread.put(units, { level, values: returns }, WHOLE);
    for (const { trajectory } of units) this.estimated.add(trajectory);
  }

  /** Trajectories that no estimator saw have no target. */
  targets(): CriticTargets {
    const { offsets, mask, trajectoryOfRow } = this.rows;
    const returnAt = advantageReader(this.spread.advantages());
    const targets = { returns: new Float32Array(mask.length), mask: new Uint32Array(mask.length) };
    for (let row = 0; row < rowCount(this.rows); row++) {
      if (!this.estimated.has(trajectoryOfRow[row]!)) continue;
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
        if (mask[t] !== 1) continue;
        targets.mask[t] = 1;
        targets.returns[t] = returnAt(t, row);
      }
    }
    return targets;
  }
}

/** verl's data metrics of a critic, over the tokens that it learns from. */
export function criticDataMetrics(rows: AdvantageRows): Metrics {
  const { targets } = rows.advantages;
  if (!targets || !rows.values) return {};
  const advantageAt = advantageReader(rows.advantages);
  const columns = { values: [] as number[], returns: [] as number[], advantages: [] as number[] };
  for (let row = 0; row < rowCount(rows); row++)
    for (let t = rows.offsets[row]!; t < rows.offsets[row + 1]!; t++) {
      if (targets.mask[t] !== 1) continue;
      columns.values.push(rows.values[t]!);
      columns.returns.push(targets.returns[t]!);
      columns.advantages.push(advantageAt(t, row));
    }
  const spreads = Object.entries(columns).map(([name, values]) => spread(`critic/${name}`, values));
  return { ...Object.assign({}, ...spreads), ...explainedVariance(columns) };
}

/** 1 - Var(returns - values) / (Var(returns) + 1e-5). @see verl compute_data_metrics */
function explainedVariance({ values, returns }: { values: readonly number[]; returns: readonly number[] }): Metrics {
  if (returns.length < 2) return {};
  const missed = sampleDeviation(returns.map((value, i) => value - values[i]!));
  return { "critic/vf_explained_var": 1 - missed ** 2 / (sampleDeviation(returns) ** 2 + 1e-5) };
}
