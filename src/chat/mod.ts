/**
 * Chat over a model: an OpenAI-compatible client without a server, transcripts that keep token ids, replies parsed into
 * messages with tool calls.
 *
 * Stable in 0.x: `createClient`, `createFetch`. A minor version may change the rest.
 * @module
 */
export { encodeConversation, type MaskedConversation } from "./assistant_mask.ts";
export {
  type ChatClient,
  type ChatEngine,
  createClient,
  createFetch,
  type FetchFunction,
} from "./endpoint.ts";
export { type AssistantMessage, parseReply, toolFormatOf } from "./reply.ts";
export { ApiError } from "./request.ts";
export type { ChatCompletion, ChatCompletionChunk } from "./response.ts";
export { type RenderedPrompt, Transcript, type TranscriptOptions } from "./transcript.ts";
