/** The row's log-ratio of GSPO: a = mean d over the row's trained tokens. */
import { rowStatistic } from "../row_statistic.ts";

export const meanLogRatio = rowStatistic({
  name: "mean-log-ratio",
  params: [],
  numbers: ({ sum, d, n }) => ({ a: sum(d) / Math.max(n, 1), b: 0 }),
  wgsl: /* wgsl */ `
fn row_numbers(row: u32, first: u32, end: u32) -> vec2f {
  var n = 0.0;
  var sum = 0.0;
  for (var t = first; t < end; t++) {
    if (mask[t] == 0u) { continue; }
    n += 1.0;
    sum += log_ratio(t);
  }
  return vec2(sum / max(n, 1.0), 0.0);
}`,
});
