/** The beginning of a run on a Tinker service: which model it offers, and under which name; and a new one made there. */
import { z } from "zod";
import { check, type TinkerSession } from "./session.ts";

export interface WantedModel {
  /** As the service names it. */
  readonly baseModel: string;
  /** Its folder on this machine, by which a server here may know it. */
  readonly baseModelFolder?: string;
  /** Rank 0 asks for all weights, where a server can. */
  readonly lora: { readonly rank: number; readonly seed?: number } & Readonly<
    Record<"train_attn" | "train_mlp" | "train_unembed", boolean>
  >;
}

export interface MadeModel {
  readonly modelId: string;
  /** The name that the service offers it by. */
  readonly baseModel: string;
  /** Tokens of a sequence, by the service's word; no bound where it gives none. */
  readonly longest: number;
  readonly info: ModelInfo;
}

/** What the service says of a model that it has made. */
export interface ModelInfo {
  readonly name: string;
  /** Where the official SDK loads the tokenizer from: a name, or with a local server a folder. */
  readonly tokenizerId?: string | undefined;
}

const MODEL = z.object({ model_id: z.string() });
const INFO = z.object({
  model_data: z.object({ model_name: z.string().nullish(), tokenizer_id: z.string().nullish() }),
});
const CAPABILITIES = z.object({
  supported_models: z.array(
    z.object({ model_name: z.string().nullish(), max_context_length: z.number().nullish() }),
  ),
});
type Offered = z.output<typeof CAPABILITIES>;

export async function makeModel(session: TinkerSession, wanted: WantedModel): Promise<MadeModel> {
  const offered = await session.get("/api/v1/get_server_capabilities", CAPABILITIES);
  const baseModel = nameOf(wanted, offered);
  const modelId = await createModel(session, { ...wanted, baseModel });
  const { model_data } = await session.ask("/api/v1/get_info", {
    body: { model_id: modelId, type: "get_info" },
    shape: INFO,
  });
  const info = {
    name: model_data.model_name ?? baseModel,
    tokenizerId: model_data.tokenizer_id ?? undefined,
  };
  return { modelId, baseModel, longest: contextLengthOf(offered, [baseModel, info.name]), info };
}

async function createModel(session: TinkerSession, { baseModel, lora }: WantedModel): Promise<string> {
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
  return check("create_model", { reply, shape: MODEL }).model_id;
}

/** The folder where the service offers the model by that name alone. */
function nameOf({ baseModel, baseModelFolder }: WantedModel, { supported_models }: Offered): string {
  const offers = (name: string) => supported_models.some(({ model_name }) => model_name === name);
  return baseModelFolder && !offers(baseModel) && offers(baseModelFolder) ? baseModelFolder : baseModel;
}

function contextLengthOf({ supported_models }: Offered, names: readonly string[]): number {
  const own = supported_models.find(({ model_name }) => names.includes(model_name ?? ""));
  return own?.max_context_length ?? Number.POSITIVE_INFINITY;
}
