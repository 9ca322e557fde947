/** A service's figures in Prometheus' text format. */
import { counter, gauge, histogram, metric } from "../../leaves/http/prometheus.ts";
import { ROLLOUT_ENDS, type ServiceFigures, type ServiceStats } from "./figures.ts";

export function serviceMetricsText(stats: ServiceStats, { judgementSeconds, refusals }: ServiceFigures): string {
  const { judgements, rollouts } = stats;
  const ends = ROLLOUT_ENDS.map((end) => [{ end }, rollouts[end]] as const);
  const lines = [
    counter("grpu_service_judgements_total", "Replies judged, those that failed included.", judgements.total),
    counter("grpu_service_judgements_failed_total", "Replies that could not be judged.", judgements.failed),
    gauge("grpu_service_judgements_waiting", "Replies that are not judged yet.", judgements.waiting),
    histogram("grpu_service_judgement_seconds", "Time of one judgement.", judgementSeconds),
    gauge("grpu_service_rollouts_open", "Rollouts whose client has not heard of the end.", rollouts.open),
    counter("grpu_service_rollouts_started_total", "Rollouts started.", rollouts.started),
    metric({ name: "grpu_service_rollouts_ended_total", help: "Rollouts by how they ended.", type: "counter" }, ends),
    counter("grpu_service_calls_total", "Model calls that the cluster answered.", stats.calls),
    counter("grpu_service_tokens_total", "Tokens that the cluster sampled for them.", stats.tokens),
    counter("grpu_service_cut_tokens_total", "Response tokens beyond max_response_length.", stats.cut_tokens),
    counter("grpu_service_repeats_total", "Requests that were sent again.", stats.repeats),
    gauge("grpu_service_answer_bytes", "Held by answers for such requests.", stats.answer_bytes),
    counter("grpu_service_failed_tries_total", "Tries that failed, repeated ones included.", stats.failed_tries),
    metric(
      { name: "grpu_service_refusals_total", help: "Refused requests by status.", type: "counter" },
      [...refusals].map(([status, count]) => [{ status: String(status) }, count]),
    ),
  ];
  return `${lines.join("\n")}\n`;
}
