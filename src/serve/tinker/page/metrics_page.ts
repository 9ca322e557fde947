/** The server's metrics in Prometheus' text format. */
import { counter, gauge } from "../../../leaves/http/prometheus.ts";
import type { TinkerService } from "../service.ts";

export function tinkerMetricsText(service: TinkerService): string {
  const { activity, models, futures, policies, scheduler } = service;
  const parked = [...service.runs.values()].reduce((sum, run) => sum + run.sequence.parkedCount, 0);
  const training = [...service.runs.values()].reduce((sum, run) => sum + run.queued, 0);
  const lines = [
    gauge("grpu_sessions", "Open sessions.", service.sessions.size),
    gauge(
      "grpu_models_loaded",
      "Training clients in memory.",
      [...service.runs.values()].filter((run) => run.trainer).length,
    ),
    gauge(
      "grpu_base_models_loaded",
      "Base models on the device.",
      models.all.filter((model) => models.isLoaded(model)).length,
    ),
    gauge("grpu_samplers", "Sampling sessions.", service.samplers.size),
    gauge("grpu_training_requests_queued", "Training requests waiting for the device.", training),
    gauge("grpu_training_requests_parked", "Training requests waiting for an earlier one to arrive.", parked),
    gauge("grpu_sampling_requests_queued", "Sampling requests waiting for the device.", policies.queued),
    gauge("grpu_results_pending", "Accepted requests without a result.", futures.pending),
    gauge("grpu_results_bytes", "Memory of results kept for clients.", futures.bytes),
    gauge("grpu_policy_bytes", "Device memory of policies to sample from.", policies.bytes),
    gauge(
      "grpu_recorded_bytes",
      "Memory of sequences recorded for stable_reinforce.",
      service.stability.recorded.bytes,
    ),
    gauge("grpu_device_live_bytes", "Device memory in use.", models.memory.live),
    gauge("grpu_device_peak_bytes", "Peak device memory.", models.memory.peak),
    gauge("grpu_device_budget_bytes", "Limit of device memory.", models.memory.budget),
    counter("grpu_device_busy_seconds_total", "Time that the device was busy.", scheduler.busyMs / 1000),
    counter("grpu_sampled_tokens_total", "Tokens sampled.", activity.sampledTokens.total),
    counter("grpu_scored_tokens_total", "Prompt tokens scored.", activity.scoredTokens.total),
    counter("grpu_trained_tokens_total", "Tokens trained on.", activity.trainedTokens.total),
    counter("grpu_optim_steps_total", "Optimiser steps.", activity.steps),
    counter("grpu_sample_batches_total", "Sampling batches.", activity.batches.total),
    counter("grpu_sample_sequences_total", "Sequences sampled.", activity.sequences.total),
    ...answers(activity.answers),
  ];
  return `${lines.join("\n")}\n`;
}

function answers(of: ReadonlyMap<string, number>): string[] {
  const name = "grpu_http_answers_total";
  const lines = [...of].map(([key, count]) => {
    const [route, status] = key.split(" ");
    return `${name}{route="${route!.replace(/["\\\n]/g, "")}",status="${status}"} ${count}`;
  });
  return [`# HELP ${name} Answers by route and status.\n# TYPE ${name} counter`, ...lines];
}
