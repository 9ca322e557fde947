/** `grpu chat`: talk to a model in the terminal. */
import { ConfigError } from "../../leaves/errors.ts";
import type { Command, Input, Io } from "../command.ts";
import { DEVICE, GPU, gpuOf } from "../options.ts";
import { EXIT_FAILED, EXIT_OK } from "../process/exit.ts";
import { BASE, integerOption, MODEL, numberOption, REPLY_SAMPLING } from "./model_options.ts";

export const chatCommand: Command = {
  path: "chat",
  summary: "talk to a model in the terminal",
  options: [
    { ...MODEL, describe: "folder of a model or an adapter, or of a run, whose newest checkpoint is used" },
    BASE,
    { flag: "--system", value: "TEXT", describe: "the system prompt" },
    {
      flag: "--chat-template",
      value: "FILE",
      describe: "Jinja file that replaces the model's template; plain is a simple one for any model",
    },
    ...REPLY_SAMPLING,
    { flag: "--seed", value: "N", describe: "seed of every reply (default: another for each)" },
    { flag: "--history", value: "FILE", describe: "keep what is typed for the next time" },
    DEVICE,
    ...GPU,
  ],
  examples: [
    "grpu chat --model ./Qwen3-0.6B",
    "grpu chat --model checkpoints/grpu/gsm8k --system 'Answer with a number.'",
    "echo 'What is 12 * 7?' | grpu chat --model ./Qwen3-0.6B",
  ],
  notes:
    "/help lists the commands: /reset, /system, /set temperature=0.7, /retry, /save. Ctrl-C stops a reply; at the prompt, twice, it leaves.\n" +
    "Without a terminal each line of standard input is a message, and standard output holds the replies alone.",
  run: chat,
};

async function chat({ options }: Input, io: Io): Promise<number> {
  const sampling = replySampling(options);
  const seed =
    options.seed === undefined
      ? undefined
      : integerOption(options.seed, { flag: "--seed", least: 0, most: 2 ** 32 - 1 });
  const { openServing } = await import("../../train/run/serve/serving.ts");
  const { servedEngine } = await import("../../serve/openai/engine.ts");
  const { chatLoop } = await import("../chat/chat_loop.ts");
  const { Talk } = await import("../../chat/talk.ts");
  const { readHistory, writeHistory } = await import("../chat/history.ts");
  if (!io.typing) throw new ConfigError("Cannot chat: there is no standard input. Run grpu chat in a terminal.");
  const file = options.history as string | undefined;
  const opened = await openServing({
    model: String(options.model),
    base: options.base as string | undefined,
    template: options.chatTemplate as string | undefined,
    sampling,
    device: { device: (options.device as "auto" | undefined) ?? "auto", ...gpuOf(options) },
    followMs: 0,
    log: (line) => io.err(`${line}\n`),
  });
  const typing = io.typing(readHistory(file));
  try {
    const { serving } = opened;
    if (serving.tokenizer.chatTemplate === undefined)
      throw new ConfigError(
        `Cannot chat: the model in ${options.model} has no chat template. Give one with --chat-template FILE (plain for a simple one), or continue texts with grpu sample.`,
      );
    const model = serving.model()!;
    const engine = servedEngine(serving, { model, owner: "chat" });
    const talk = new Talk(engine, {
      system: options.system as string | undefined,
      ...(seed !== undefined && { settings: { seed } }),
    });
    if (typing.isTerminal) io.err(`${serving.engine.device}\n${model.name}: /help lists the commands\n`);
    const hasFailed = await chatLoop({ talk, typing, io });
    writeHistory(file, typing.history);
    return hasFailed && !typing.isTerminal ? EXIT_FAILED : EXIT_OK;
  } finally {
    typing.close();
    await opened.close();
  }
}

/** Sampling flags that are given; the model's own values hold for the others. */
export function replySampling({ maxTokens, temperature, topP, topK }: Input["options"]) {
  return {
    ...(maxTokens !== undefined && { max_tokens: integerOption(maxTokens, { flag: "--max-tokens", least: 1 }) }),
    ...(temperature !== undefined && { temperature: numberOption(temperature, { flag: "--temperature", least: 0 }) }),
    ...(topP !== undefined && { top_p: numberOption(topP, { flag: "--top-p", least: 0, most: 1 }) }),
    ...(topK !== undefined && { top_k: integerOption(topK, { flag: "--top-k", least: 0 }) }),
  };
}
