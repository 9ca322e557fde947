/** Creates a training client's model on the service, under the name by which the service offers it. */
import { z } from "zod";
import { LOGITS_TEMPERATURE } from "../../../engine/contract/engine.ts";
import { checkReply } from "./reply.ts";
import type { TinkerSession } from "./session.ts";

/** Model that a service should create for training, and its adapter. */
export interface WantedModel {
  /** The service's name of the model. */
  readonly baseModel: string;
  /** The model's folder, which a server on this machine may use as its name. */
  readonly baseModelFolder?: string;
  /** Rank 0 trains all weights, if the server supports it. */
  readonly lora: { readonly rank: number; readonly seed?: number } & Readonly<
    Record<"train_attn" | "train_mlp" | "train_unembed", boolean>
  >;
}

export interface CreatedModel {
  readonly modelId: string;
  /** The name by which the service offers it. */
  readonly baseModel: string;
  /** Longest sequence in tokens; Infinity if the service gives no limit. */
  readonly longest: number;
  readonly info: ModelInfo;
  /** Whether it trains on log-probs at other temperatures than 1. */
  readonly takesTemperature: boolean;
}

/** The service's description of a model. */
export interface ModelInfo {
  readonly name: string;
  /** Source from which the official SDK loads the tokenizer: a name, or a folder of a local server. */
  readonly tokenizerId?: string | undefined;
}

const MODEL = z.object({ model_id: z.string() });
const INFO = z.object({
  model_data: z.object({ model_name: z.string().nullish(), tokenizer_id: z.string().nullish() }),
});
const CAPABILITIES = z.object({
  supported_models: z.array(z.object({ model_name: z.string().nullish(), max_context_length: z.number().nullish() })),
  // Settings that every loss takes: an extension of ours.
  loss_fn_config: z.array(z.string()).nullish(),
});
type Offered = z.output<typeof CAPABILITIES>;

export async function createRemoteModel(session: TinkerSession, wanted: WantedModel): Promise<CreatedModel> {
  const offered = await session.get("/api/v1/get_server_capabilities", CAPABILITIES);
  const baseModel = nameOf(wanted, offered);
  const modelId = await requestModel(session, { ...wanted, baseModel });
  const { model_data } = await session.ask("/api/v1/get_info", {
    body: { model_id: modelId, type: "get_info" },
    shape: INFO,
  });
  const info = {
    name: model_data.model_name ?? baseModel,
    tokenizerId: model_data.tokenizer_id ?? undefined,
  };
  const takesTemperature = offered.loss_fn_config?.includes(LOGITS_TEMPERATURE) ?? false;
  return { modelId, baseModel, longest: contextLengthOf(offered, [baseModel, info.name]), info, takesTemperature };
}

async function requestModel(session: TinkerSession, { baseModel, lora }: WantedModel): Promise<string> {
  const { rank, seed, train_attn, train_mlp, train_unembed } = lora;
  const body = {
    session_id: session.id,
    model_seq_id: 0,
    base_model: baseModel,
    lora_config: { rank, train_attn, train_mlp, train_unembed, ...(seed !== undefined && { seed }) },
    type: "create_model",
  };
  const requestId = await session.submit("/api/v1/create_model", { body });
  const reply = await session.result(requestId, { type: "CreateModel" });
  return checkReply("create_model", { reply, shape: MODEL }).model_id;
}

/** The folder if the service offers the model only under that name. */
function nameOf({ baseModel, baseModelFolder }: WantedModel, { supported_models }: Offered): string {
  const offers = (name: string) => supported_models.some(({ model_name }) => model_name === name);
  return baseModelFolder && !offers(baseModel) && offers(baseModelFolder) ? baseModelFolder : baseModel;
}

function contextLengthOf({ supported_models }: Offered, names: readonly string[]): number {
  const supported = supported_models.find(({ model_name }) => names.includes(model_name ?? ""));
  return supported?.max_context_length ?? Number.POSITIVE_INFINITY;
}
