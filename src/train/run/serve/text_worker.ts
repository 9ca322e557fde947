/** The thread of text_thread.ts: renders and encodes with a tokenizer of its own. */
import { parentPort, workerData } from "node:worker_threads";
import { createTokenizer, type TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import type { TextAnswer, TextFailure, TextQuestion, TextWorkerData } from "./text_questions.ts";

function openTokenizer({ files, eosTokenIds }: TextWorkerData): TextTokenizer {
  return createTokenizer({
    tokenizer: JSON.parse(files["tokenizer.json"]!),
    config: JSON.parse(files["tokenizer_config.json"]!),
    chatTemplate: files["chat_template.jinja"],
    eosTokenIds,
  });
}

function failureOf(error: unknown): TextFailure {
  const { name = "Error", message = String(error), stack, part, capability, file } = (error ?? {}) as TextFailure;
  return { name, message, stack, ...(part && { part }), ...(capability && { capability }), ...(file && { file }) };
}

const tokenizer = openTokenizer(workerData as TextWorkerData);
const say = (answer: TextAnswer) => parentPort?.postMessage(answer);
/** The choices of one request come one after the other, with the same text. */
let last: { readonly key: string; readonly text: string; readonly ids: Uint32Array } | undefined;

function encoded({ text, options }: Extract<TextQuestion, { encode: unknown }>["encode"]): Uint32Array {
  const key = JSON.stringify(options);
  if (last?.key !== key || last.text !== text)
    last = { key, text, ids: Uint32Array.from(tokenizer.encode(text, options)) };
  return last.ids;
}

parentPort?.on("message", (question: TextQuestion) => {
  say({ begun: true });
  try {
    const isText = "encode" in question;
    say({
      value: isText ? encoded(question.encode) : tokenizer.formatChat(question.chat.messages, question.chat.options),
    });
  } catch (error) {
    say({ failure: failureOf(error) });
  }
});
