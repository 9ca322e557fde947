/** The official SDK, unchanged, against `grpu serve tinker`. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import type { Sdk } from "./sdks.ts";
import { type Server, startServer } from "./server.ts";

const MODEL = sharedPath("models/stories260k");
const CLIENT = fileURLToPath(new URL("sdk_client.py", import.meta.url));
/** Tolerance between sampler and trainer, and between two computations of one number. */
const GAP = 1e-4;

// biome-ignore lint/suspicious/noExplicitAny: the JSON output of a Python program
type Output = any;
const outputs = new Map<string, { ok?: Output; error?: string }>();

describe.each([...inject("sdks")])("$name", (sdk) => {
  let server: Server;
  const isReady = hasShared && sdk.python !== undefined;

  beforeAll(async () => {
    if (!isReady) return;
    server = await startServer(["--model", MODEL]);
    for (const { scenario, ...result } of await drive(sdk, server.url)) outputs.set(`${sdk.name} ${scenario}`, result);
  });
  afterAll(async () => {
    if (server) expect(await server.stop()).toBe(0);
  });

  /** A test of one scenario's output. */
  function scenario(name: string, title: string, check: (of: Output) => void): void {
    const isOff = !isReady || (name === "custom" && !sdk.hasTorch);
    test.skipIf(isOff)(title, () => {
      const result = outputs.get(`${sdk.name} ${name}`);
      if (!result?.ok) expect.fail(result?.error ?? "the scenario did not run");
      check(result.ok);
    });
  }

  scenario("sft", "supervised steps bring the loss down; the loss is the weighted sum of the log-probs", (of) => {
    expect(of.losses.at(-1)).toBeLessThan(of.losses[0] / 4);
    expect(of.weighted).toBeCloseTo(of.by_hand, 5);
    expect(of.forward_repeats).toBe(true);
    expect(of.lengths).toEqual([expect.any(Number), 8]);
    expect(of.metric_names).toEqual(["loss:sum"]);
    expect(of.info).toEqual([true, 8, "llama"]);
  });

  scenario("losses", "the five losses equal the published sums", ({ losses }) => {
    expect(losses).toHaveLength(6);
    for (const { name, service: value, trained, by_hand, grad_norm } of losses) {
      expect(value, name).toBeCloseTo(by_hand, 6);
      expect(trained, name).toBe(value);
      expect(grad_norm, name).toBeGreaterThan(0);
    }
    expect(losses[1].service).not.toBeCloseTo(losses[2].service, 2);
  });

  scenario("custom", "a cross entropy of the user's own trains as the built-in one", ({ built_in, custom }) => {
    for (const [i, [loss, norm]] of custom.metrics.entries()) {
      expect(loss).toBeCloseTo(built_in.metrics[i][0], 5);
      expect(norm).toBeCloseTo(built_in.metrics[i][1], 4);
    }
    expect(worstGap(custom.logprobs, built_in.logprobs)).toBeLessThan(1e-5);
    expect(built_in.metrics[2][0]).not.toBeCloseTo(built_in.metrics[0][0], 1);
  });

  scenario("resume", "a resumed run ends like the uninterrupted one", (of) => {
    expect(of.path).toMatch(/^tinker:\/\/.+:train:0\/weights\/half$/);
    expect(of.at_start).toEqual(of.half);
    expect(of.fresh_start).toEqual(of.half);
    expect(of.resumed).toEqual(of.whole);
    expect(of.fresh).not.toEqual(of.whole);
  });

  scenario("sampling", "samples repeat by their seed, and their log-probs are the trainer's", (of) => {
    expect(of.repeats).toBe(true);
    expect(of.distinct).toBeGreaterThan(1);
    expect(of.worst_gap).toBeLessThan(GAP);
    expect(of.likeliest).toEqual(of.greedy);
    expect(of.tokenizer_size).toBe(512);
  });

  scenario("sampling", "a stop token or text ends a sample and is part of it", (of) => {
    expect(of.by_id).toEqual([of.greedy.slice(0, of.greedy.indexOf(of.stop_id) + 1), "stop"]);
    expect(of.by_text[0].endsWith(of.word)).toBe(true);
    expect(of.by_text[1]).toBe("stop");
  });

  scenario("sampling", "a sampler keeps its weights while training continues", (of) => {
    expect(of.old_after).toEqual(of.old_before);
    expect(worstGap(of.old_after, of.prompt_logprobs)).toBeGreaterThan(0.1);
  });

  scenario("sampling", "prompt log-probs are the trainer's, the likeliest tokens among them", (of) => {
    expect(of.prompt_first).toBeNull();
    expect(worstGap(of.prompt_logprobs, of.trainer_logprobs)).toBeLessThan(GAP);
    expect(of.topk[0]).toBeNull();
    for (const [i, row] of of.topk.slice(1).entries()) {
      const values = row.map(([, logprob]: [number, number]) => logprob);
      expect(values).toEqual([...values].sort((a, b) => b - a));
      expect(values[0]).toBeGreaterThanOrEqual(of.prompt_logprobs[i] - GAP);
    }
  });

  scenario("named_sampler", "weights saved for sampling are the trainer's, not the base model's", (of) => {
    expect(of.path).toMatch(/sampler_weights\/named$/);
    expect(worstGap(of.sampler, of.trainer)).toBeLessThan(GAP);
    expect(worstGap(of.base, of.trainer)).toBeGreaterThan(0.01);
  });

  scenario("grpo", "policy gradients with importance sampling raise the reward", ({ rewards }) => {
    expect(rewards.at(-1)).toBeGreaterThan(3 * rewards[0]);
  });

  scenario("chunks", "a batch in several requests returns complete", (of) => {
    expect(of.count).toBe(1100);
    expect(of.service).toBeCloseTo(of.by_hand, 3);
  });

  scenario("side_by_side", "adapters of different ranks train side by side", ({ small, large }) => {
    expect(small[0]).toBe(large[0]);
    for (const losses of [small, large]) expect(losses[2]).toBeLessThan(losses[0] / 2);
    expect(small[2]).not.toBe(large[2]);
  });

  scenario("records", "checkpoints are listed, published, kept, exported and deleted", (of) => {
    expect(of.kinds).toEqual(["sampler", "training"]);
    expect(Math.min(...of.sizes)).toBeGreaterThan(1000);
    expect(of.ttl_set).toEqual([true]);
    expect(of.info).toEqual([true, 4, expect.stringContaining("stories260k")]);
    expect(of.public).toEqual([true]);
    expect(of.kept).toEqual([null]);
    expect(of.session_runs).toEqual([of.run]);
    expect(of.runs).toContain(of.run);
    expect(of.run_rank).toBe(4);
    expect(of.after_delete).toEqual([`tinker://${of.run}/sampler_weights/served`]);
    // Newer SDKs have no method for it.
    if (of.archive) {
      const { rank, ...files } = of.archive;
      expect(Object.keys(files)).toEqual(["adapter_config.json", "adapter_model.safetensors"]);
      expect(rank).toBe(4);
    }
  });

  scenario("newer", "what later releases send works, or is refused at once by its name", (of) => {
    // The oldest release has none of it.
    if (Object.keys(of).length === 0) return;
    expect(of.model_name).toBe(MODEL);
    for (const pair of [of.default_loss, of.weighted, of.elementwise, of.gspo])
      expect(Math.abs(pair[0] / pair[1] - 1)).toBeLessThan(1e-4);
    expect(of.shape[1]).toBe(2);
    expect(of.first_column).toBe(true);
    expect(of.inflight).toEqual([false, true, true]);
    expect(of.choices).toEqual([true, true, [of.tokens - 1, 2]]);
    expect(of.topk_samples).toEqual([true, expect.any(Number), [true, true], null]);
    expect(of.topk_samples[1]).toBeLessThan(GAP);
    const cells = [of.tokens - 1, 3];
    expect(of.drawn).toEqual([cells, cells, expect.any(Number)]);
    expect(of.drawn[2]).toBeLessThan(GAP);
    expect(of.own).toEqual([true, [of.tokens - 1, 1]]);
    expect(of.other_optimiser.text).toContain("trains only with AdamW");
    expect(of.external["adapter_model.safetensors"]).toBeGreaterThan(1000);
    expect(of.sessions).toEqual([["Newer requests", "interop", 1]]);
    expect(of.project).toEqual([1, 0]);
  });

  scenario("mistakes", "invalid requests fail in the category user, and the server continues", (of) => {
    const { alive, other_model, no_checkpoint, ...failed } = of;
    for (const [name, failure] of Object.entries<Output>(failed)) {
      expect(failure, name).toMatchObject({
        type: "RequestFailedError",
        category: expect.stringMatching(/user/i),
      });
      expect(failure.text, name).toContain("Cannot ");
    }
    expect(failed.step_after_failure.text).toContain("the gradient is cleared");
    expect(failed.bad_name.text).toContain("../escape");
    expect(other_model.text).toContain("this server has another one");
    expect(no_checkpoint.text).toContain("Cannot find the checkpoint");
    expect(alive).toBeGreaterThan(0);
  });
});

async function drive(sdk: Sdk, url: string): Promise<{ scenario: string; ok?: Output; error?: string }[]> {
  const scenarios = [
    "sft",
    "losses",
    "resume",
    "sampling",
    "named_sampler",
    "grpo",
    "chunks",
    "side_by_side",
    "records",
    "newer",
    "mistakes",
  ];
  if (sdk.hasTorch) scenarios.push("custom");
  const { stdout } = await promisify(execFile)(sdk.python!, [CLIENT, url, MODEL, ...scenarios], {
    env: { ...process.env, TINKER_API_KEY: "tml-test", TINKER_TELEMETRY: "0", HF_HUB_OFFLINE: "1" },
    maxBuffer: 2 ** 26,
    timeout: 600_000,
  });
  return stdout
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line));
}

function worstGap(a: readonly number[], b: readonly number[]): number {
  expect(a).toHaveLength(b.length);
  return Math.max(...a.map((value, i) => Math.abs(value - b[i]!)));
}
