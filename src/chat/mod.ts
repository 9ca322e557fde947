/**
 * Chat over a model: an OpenAI-compatible client without a server, transcripts that keep token ids, replies parsed into
 * messages with tool calls.
 *
 * Stable in 0.x: `createClient`, `createFetch`. A minor version may change the rest.
 * @module
 */
export { encodeConversation, type MaskedConversation } from "./assistant_mask.ts";
export {
  type ChatCall,
  type ChatClient,
  type ChatEngine,
  type ChoiceStart,
  createClient,
  createFetch,
  type FetchFunction,
} from "./endpoint.ts";
export { type AssistantMessage, type ParseOptions, parseReply, toolFormatOf } from "./reply.ts";
export { ApiError, type ChatRequest, type ResponseFormat, type TextRequest, type ToolChoice } from "./request.ts";
export type { ChatCompletion, ChatCompletionChunk, Drawn, DrawnChat } from "./response.ts";
export { type RenderedPrompt, Transcript, type TranscriptOptions } from "./transcript.ts";
