/** A serving's metrics in Prometheus' text format. */
import { counter, gauge, histogram, metric } from "../../leaves/http/prometheus.ts";
import type { Serving } from "./serving.ts";

export function servingMetrics(serving: Serving): string {
  const { figures, engine, scheduler, models } = serving;
  const perModel = (name: string, help: string, value: (model: (typeof models)[number]) => number) =>
    metric(
      { name, help, type: "gauge" },
      models.map((model) => [{ model: model.name }, value(model)]),
    );
  const lines = [
    perModel("grpu_requests_waiting", "Requests that have not begun.", ({ waiting }) => waiting),
    perModel("grpu_requests_running", "Requests that are being sampled.", (model) => model.pending - model.waiting),
    perModel("grpu_weight_version", "Optimiser steps in the weights of new requests.", (model) => model.weightVersion),
    gauge("grpu_callers_active", "Sessions with requests that are not done.", serving.active),
    counter("grpu_requests_total", "Requests that were answered.", figures.requests.total),
    metric(
      { name: "grpu_requests_failed_total", help: "Requests without a reply, by reason.", type: "counter" },
      [...figures.failures].map(([reason, count]) => [{ reason }, count]),
    ),
    counter("grpu_prompt_tokens_total", "Tokens of prompts.", figures.promptTokens.total),
    counter("grpu_sampled_tokens_total", "Tokens sampled.", figures.sampledTokens.total),
    counter("grpu_masked_tokens_total", "Tokens sampled under a mask.", figures.maskedTokens.total),
    counter("grpu_constraints_relaxed_total", "Replies whose constraint was given up.", figures.relaxed.total),
    counter(
      "grpu_spec_decode_num_drafts_total",
      "Steps with guessed tokens, of a sequence each.",
      figures.drafts.total,
    ),
    counter("grpu_spec_decode_num_draft_tokens_total", "Tokens guessed.", figures.draftTokens.total),
    counter(
      "grpu_spec_decode_num_accepted_tokens_total",
      "Guessed tokens that were drawn.",
      figures.acceptedTokens.total,
    ),
    counter("grpu_sample_batches_total", "Sampling batches.", figures.batches.total),
    counter("grpu_sample_sequences_total", "Sequences sampled.", figures.sequences.total),
    histogram("grpu_first_token_seconds", "From a request to its first token.", figures.firstTokenSeconds),
    histogram("grpu_request_seconds", "From a request to its whole reply.", figures.requestSeconds),
    gauge("grpu_device_live_bytes", "Device memory in use.", engine.memory.live),
    gauge("grpu_device_peak_bytes", "Peak device memory.", engine.memory.peak),
    gauge("grpu_device_budget_bytes", "Limit of device memory.", engine.memory.budget),
    counter("grpu_device_busy_seconds_total", "Time that the device was busy.", scheduler.busyMs / 1000),
  ];
  return `${lines.join("\n")}\n`;
}
