/**
 * Chat over a model: clients of OpenAI's and Anthropic's APIs without a server, transcripts that keep token ids, replies parsed into
 * messages with tool calls.
 *
 * Stable in 0.x: `createClient`, `createFetch`. A minor version may change the rest.
 * @module
 */

export type { ChatCompletion, ChatCompletionChunk } from "./apis/chat/response.ts";
export { errorResponse } from "./apis/errors.ts";
export { encodeConversation, type MaskedConversation } from "./assistant_mask.ts";
export { type ChatClient, createClient, createFetch, type FetchFunction } from "./endpoint.ts";
export type { ChatCall, ChatEngine, ChoiceStart } from "./engine.ts";
export { type AssistantMessage, type ParseOptions, parseReply, toolFormatOf } from "./reply.ts";
export { ApiError, type ChatRequest, type ResponseFormat, type TextRequest, type ToolChoice } from "./request.ts";
export type { Drawn, DrawnChat } from "./response.ts";
export { type RenderedPrompt, Transcript, type TranscriptOptions } from "./transcript.ts";
