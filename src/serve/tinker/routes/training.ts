/** The routes of training clients. Each accepts a request and answers with its future. */
import type { Context } from "hono";
import { checkRecipients } from "../checkpoint/age.ts";
import { decodeForwardBackward, peekAddress } from "../protocol/forward_backward.ts";
import { type Future, futureBody } from "../protocol/futures.ts";
import { lossRowBytes } from "../protocol/loss_rows.ts";
import { Refusal } from "../protocol/outcome.ts";
import { NO_DIMUON, SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import type { Numbered } from "../train/training_requests.ts";
import type { TrainingRun } from "../train/training_run.ts";
import { type RequestContext, type Routes, readRequest, waiting } from "./bodies.ts";

type Call = Context<RequestContext>;

export function addTrainingRoutes(app: Routes, service: TinkerService): void {
  const accept = (path: string, handle: (service: TinkerService, c: Call) => Future | Promise<Future>) =>
    app.post(`/api/v1/${path}`, async (c) => c.json(futureBody(await handle(service, c))));
  accept("create_model", createModel);
  accept("forward_backward", forwardBackward);
  accept("optim_step", optimStep);
  accept("save_weights", saveWeights);
  accept("save_weights_for_sampler", saveWeightsForSampler);
  accept("save_weights_external", saveWeightsExternal);
  accept("load_weights", loadWeights);
  accept("unload_model", ({ runs }, c) => runs.unload(readRequest(c, SHAPES.model).model_id));
  app.post("/api/v1/get_info", (c) => {
    return c.json(infoOf(service.runs.find(readRequest(c, SHAPES.model).model_id)));
  });
}

function createModel({ runs }: TinkerService, c: Call): Future {
  const request = readRequest(c, SHAPES.createModel);
  const lora = request.lora_config;
  return runs.create({
    session: request.session_id,
    number: request.model_seq_id,
    baseModel: request.base_model,
    config: {
      rank: lora?.rank ?? 0,
      seed: lora?.seed ?? request.model_seq_id,
      trainUnembed: lora?.train_unembed ?? true,
      trainMlp: lora?.train_mlp ?? true,
      trainAttn: lora?.train_attn ?? true,
    },
    userMetadata: request.user_metadata ?? undefined,
    print: c.get("body").print,
  });
}

async function forwardBackward(service: TinkerService, c: Call): Promise<Future> {
  const body = c.get("body");
  // A request for an unknown model is refused before its data are decoded.
  const address = peekAddress(body.bytes);
  const run = address && service.runs.find(address.modelId);
  const message = await decodeForwardBackward(body.bytes);
  const recorded = service.stability.bytesOf(message);
  body.lease.takeMore(message.overheadBytes + lossRowBytes(message.data, body.bytes) + recorded);
  const of = { modelId: message.modelId, number: message.seqId, print: body.print };
  return waiting(service, {
    lease: body.lease,
    waitForIt: run !== undefined && run.sequence.parkedCount > 0 && run.sequence.missing === of.number,
    open: () =>
      service.training.forwardBackward(of, {
        data: message.data,
        loss: { name: message.lossFn, config: message.config },
        forwardOnly: message.forwardOnly,
      }),
  });
}

function optimStep({ training }: TinkerService, c: Call): Future {
  const { adam_params, optimizer_params, ...request } = readRequest(c, SHAPES.optimStep);
  if (optimizer_params) {
    const { type } = optimizer_params;
    const why = type === "dimuon" ? ` ${NO_DIMUON}.` : "";
    throw new Refusal(
      422,
      `Cannot run optim_step: this server trains only with AdamW (${JSON.stringify(type.slice(0, 100))}).${why} Send AdamParams.`,
    );
  }
  if (!adam_params) throw new Refusal(422, "Cannot run optim_step: the request has no adam_params. Send AdamParams.");
  return training.optimStep(numbered(c, request), adam_params);
}

function saveWeights({ training }: TinkerService, c: Call): Future {
  const request = readRequest(c, SHAPES.saveWeights);
  return training.saveWeights(numbered(c, request), {
    kind: "weights",
    name: request.path ?? `seq-${request.seq_id}`,
    ttlSeconds: request.ttl_seconds ?? undefined,
    overwrite: request.overwrite,
    userMetadata: request.user_metadata ?? undefined,
  });
}

/** Saves weights under a name as a checkpoint, or under a number as a sampler's weights in memory. */
function saveWeightsForSampler({ training }: TinkerService, c: Call): Future {
  const request = readRequest(c, SHAPES.saveForSampler);
  const of = numbered(c, request);
  const { path, kind, sampling_session_seq_id: samplerNumber } = request;
  if (kind === "inflight" && typeof path === "string")
    throw new Refusal(
      422,
      `Cannot save for a sampler: inflight weights have no name (${path.slice(0, 100)}). Omit path, or use kind snapshot.`,
    );
  if (typeof path === "string")
    return training.saveWeights(of, {
      kind: "sampler_weights",
      name: path,
      ttlSeconds: request.ttl_seconds ?? undefined,
      overwrite: false,
      userMetadata: request.user_metadata ?? undefined,
    });
  if (typeof samplerNumber === "number") return training.makeSampler(of, { kind, samplerNumber });
  throw new Refusal(
    422,
    "Cannot save for a sampler: the request needs path (a name) or sampling_session_seq_id (a snapshot).",
  );
}

/** Saves weights as files that other software reads: an adapter in PEFT's form, or a whole model. */
function saveWeightsExternal({ training }: TinkerService, c: Call): Future {
  const request = readRequest(c, SHAPES.saveExternal);
  const recipients = request.age_encryption_recipients ?? [];
  checkRecipients(recipients);
  return training.saveWeights(numbered(c, request), {
    kind: "external_weights",
    name: request.path,
    ttlSeconds: request.ttl_seconds ?? undefined,
    overwrite: false,
    recipients,
  });
}

/** Loads weights into an existing model, or into a new one. */
function loadWeights({ training, runs }: TinkerService, c: Call): Future {
  const request = readRequest(c, SHAPES.loadWeights);
  const { path, optimizer, model_id, seq_id, session_id, model_seq_id } = request;
  if (request.weights_access_token)
    throw new Refusal(
      422,
      "Cannot load weights: this server has no access tokens, because every client may load every checkpoint. Omit weights_access_token.",
    );
  if (typeof model_id === "string")
    return training.loadWeights(numbered(c, { model_id, seq_id: seq_id ?? 0n }), { path, optimizer });
  if (typeof session_id === "string" && typeof model_seq_id === "number")
    return runs.createFrom({
      session: session_id,
      number: model_seq_id,
      path,
      optimizer,
      userMetadata: request.user_metadata ?? undefined,
      print: c.get("body").print,
    });
  throw new Refusal(
    422,
    "Cannot load weights: the request needs model_id, or session_id and model_seq_id for a new model.",
  );
}

function numbered(c: Call, request: { model_id: string; seq_id: bigint }): Numbered {
  return { modelId: request.model_id, number: request.seq_id, print: c.get("body").print };
}

function infoOf({ model: { engine }, record: { id, config, baseModel } }: TrainingRun) {
  return {
    type: "get_info",
    model_id: id,
    model_data: { arch: engine.architecture, model_name: baseModel, tokenizer_id: engine.folder },
    is_lora: config.rank > 0,
    lora_rank: config.rank > 0 ? config.rank : null,
    model_name: baseModel,
  };
}
