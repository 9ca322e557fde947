/** Contents of messages: a text, or parts of text. */
import { ApiError } from "../request.ts";

/** The joined text of a content. @param types of the parts that hold text @throws {ApiError} for images, files and other parts */
export function textContent(
  content: unknown,
  { types, param }: { readonly types: readonly string[]; readonly param: string },
): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content))
    throw new ApiError(`Cannot use ${param}: it must be a text or a list of parts.`, { param });
  return content.map((part, i) => partText(part, { types, param: `${param}.${i}` })).join("");
}

/** The text of one part. @throws {ApiError} as {@link textContent} */
export function partText(
  part: unknown,
  { types, param }: { readonly types: readonly string[]; readonly param: string },
): string {
  const { type, text } = (part ?? {}) as { type?: unknown; text?: unknown };
  if (typeof type === "string" && types.includes(type) && typeof text === "string") return text;
  throw new ApiError(
    `Cannot use ${param}: only parts of type ${types.join(", ")} are supported (${JSON.stringify(type) ?? "none"}). The model reads text alone.`,
    { param },
  );
}
