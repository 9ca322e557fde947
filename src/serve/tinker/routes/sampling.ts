/** The routes of sampling clients. */

import { futureBody } from "../protocol/futures.ts";
import { Refusal } from "../protocol/outcome.ts";
import { sampledTopBytes } from "../protocol/prompt_request.ts";
import { MOST_PROMPT_CELLS } from "../protocol/prompt_targets.ts";
import { promptRequestOf, SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import { type Routes, readRequest, waiting } from "./bodies.ts";

/**
 * Bytes of a cell of target_prompt_logprobs or prompt_alt_tokens: its id and column as read, its place and token, and
 * its log-prob.
 */
const CELL_BYTES = 32;

export function addSamplingRoutes(app: Routes, service: TinkerService): void {
  const { samplers } = service;
  app.post("/api/v1/create_sampling_session", async (c) => {
    const request = readRequest(c, SHAPES.createSampler);
    if (typeof request.model_path === "string") {
      await service.peers.bring(request.model_path);
      // The server may have begun to stop while the checkpoint was copied.
      service.refuseWhileStopping();
    }
    const sampler = samplers.create({
      session: request.session_id,
      number: request.sampling_session_seq_id,
      baseModel: request.base_model ?? undefined,
      modelPath: request.model_path ?? undefined,
      print: c.get("body").print,
    });
    return c.json({ sampling_session_id: sampler.id, type: "create_sampling_session" });
  });
  app.post("/api/v1/asample", (c) => {
    const { lease, print } = c.get("body");
    const { sampling_session_id, seq_id, ...request } = readRequest(c, SHAPES.sample);
    if (typeof sampling_session_id !== "string")
      throw new Refusal(422, "Cannot sample: the request needs sampling_session_id. Create a sampling session first.");
    const sampler = samplers.use(sampling_session_id);
    const prompt = promptRequestOf(request);
    if (prompt.recordsStability) service.stability.refuseRecording();
    const drawn = Math.min(prompt.promptAltTokens * prompt.prompt.length, MOST_PROMPT_CELLS);
    const cells = (prompt.targetPromptLogprobs?.data.length ?? 0) + drawn;
    lease.takeMore(8 * prompt.prompt.length + CELL_BYTES * cells + sampledTopBytes(prompt, sampler.model.engine));
    let sequenceIds: readonly string[] = [];
    const future = waiting(service, {
      lease,
      waitForIt: false,
      open: () => {
        const samples = samplers.sample(sampler, { number: seq_id ?? undefined, print, request: prompt });
        sequenceIds = samples.sequenceIds;
        return samples.future;
      },
    });
    return c.json({ ...futureBody(future), sample_sequence_ids: sequenceIds });
  });
  app.get("/api/v1/samplers/:id", (c) => {
    const { id, modelPath, model } = samplers.use(c.req.param("id"));
    // The SDK loads the tokenizer from base_model.
    return c.json({ sampler_id: id, base_model: model.engine.folder, model_path: modelPath ?? null });
  });
}
