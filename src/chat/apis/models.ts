/** Lists of models, in OpenAI's form and in Anthropic's. */
import { ApiError } from "../request.ts";
import type { ApiForm } from "./errors.ts";

/** The date is unknown: weights change while they are served. */
const NO_DATE = "1970-01-01T00:00:00Z";

export function modelList(ids: readonly string[], form: ApiForm): object {
  const data = ids.map((id) => modelEntry(id, form));
  if (form === "openai") return { object: "list", data };
  return { data, has_more: false, first_id: ids[0] ?? null, last_id: ids.at(-1) ?? null };
}

/** @throws {ApiError} for a model that is not served */
export function findModel(id: string, { ids, form }: { ids: readonly string[]; form: ApiForm }): object {
  if (ids.includes(id)) return modelEntry(id, form);
  throw new ApiError(`Cannot find the model ${id}: it is not served. Known: ${ids.join(", ")}.`, {
    status: 404,
    code: "model_not_found",
    param: "model",
  });
}

function modelEntry(id: string, form: ApiForm): object {
  return form === "openai"
    ? { id, object: "model", created: 0, owned_by: "grpu" }
    : { type: "model", id, display_name: id, created_at: NO_DATE };
}
