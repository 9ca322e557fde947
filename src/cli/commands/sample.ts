/** `grpu sample`: text in, text out. */

import { encodeText } from "../../chat/seams.ts";
import { Transcript } from "../../chat/transcript.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";
import { OTHER_PROMPT_KEYS } from "../../train/data/rows.ts";
import type { Command, Input, Io } from "../command.ts";
import { ADAPTER, DEVICE, deviceOf } from "../options.ts";
import { BASE, integerOption, MODEL, modelSamplingParams, numberOption, SAMPLING_OPTIONS } from "./model_options.ts";

export const sampleCommand: Command = {
  path: "sample",
  summary: "continue a text with a model",
  options: [
    MODEL,
    BASE,
    {
      flag: "--prompt",
      value: "TEXT",
      describe: "text to continue; - reads it from standard input",
    },
    {
      flag: "--prompts",
      value: "FILE",
      describe: "JSONL or Parquet file whose prompts are continued; a row's prompt, instruction or question",
    },
    { flag: "--chat", describe: "treat the text as a user message and apply the model's chat template" },
    {
      flag: "--chat-template",
      value: "FILE",
      describe: "Jinja file that replaces the model's template; plain is a simple one for any model",
    },
    ...SAMPLING_OPTIONS,
    { flag: "--n", value: "N", describe: "how many continuations", default: "1" },
    DEVICE,
    ...ADAPTER,
    { flag: "--json", describe: "print one JSON object for each continuation" },
  ],
  examples: [
    "grpu sample --model checkpoints/grpu/arithmetic/global_step_60 --prompt 37+5=",
    'grpu sample --model ./stories260k --prompt "Once upon a time" --max-tokens 100 --temperature 0.8',
    'grpu sample --model ./stories260k --prompt "The dog" --n 4 --json',
    "grpu sample --model checkpoints/grpu/stories --prompt 'The dog'",
    "grpu sample --model ./teacher --prompts examples/stories/stories_prompts.jsonl --n 4 --json > rows.jsonl",
    'grpu sample --model ./Qwen3-0.6B --chat --prompt "What is 12 * 7?" --max-tokens 300',
  ],
  notes:
    "--model takes a Hugging Face folder, a run or a checkpoint of grpu train, or a LoRA adapter in PEFT's form. Temperature, top-p and top-k that are not given come from its generation_config.json where it has one. What --prompts --json prints are rows for grpu sft with data.response_key=text.",
  run: (input, io) => sample(input, io),
};

async function sample({ options }: Input, io: Io): Promise<void> {
  const prompts = await promptsOf(options, io);
  modelSamplingParams(options);
  const n = integerOption(options.n, { flag: "--n", least: 1 });
  const seed = numberOption(options.seed, { flag: "--seed", least: 0 });
  const { checkpointDir } = await import("../../train/run/model/checkpoint_dir.ts");
  const { openForInference } = await import("../../train/run/model/local_backend.ts");
  const { recommendedSampling } = await import("./recommended_options.ts");
  const { seedOf } = await import("../../leaves/random.ts");
  const folder = await checkpointDir(String(options.model), io);
  const base = options.base as string | undefined;
  const template = options.chatTemplate as string | undefined;
  const { backend, device } = await openForInference(folder, { on: deviceOf(options), base, template });
  try {
    const { tokenizer } = backend;
    if (!tokenizer) {
      throw new UnsupportedError(
        `Cannot sample text: the model has no tokenizer.json (${folder}). Add the file, or use grpu model generate.`,
        {
          part: "sample",
          capability: "tokenizer",
        },
      );
    }
    io.err(options.json ? "" : `${device.info.kind}: ${device.info.description}\n`);
    const params = modelSamplingParams(options, await recommendedSampling(folder, { base, options, io }));
    const requests = prompts.flatMap((prompt, p) => {
      const prompt_ids = options.chat ? chatPrompt(prompt, { tokenizer, folder }) : encodeText(tokenizer, prompt);
      const room = backend.model.contextLength - prompt_ids.length;
      if (room < 1)
        throw new ConfigError(
          `Cannot continue the prompt: its ${prompt_ids.length} tokens fill the context of ${backend.model.contextLength}. Shorten it.`,
        );
      const max_tokens = Math.min(params.max_tokens, room);
      const fitted = { ...params, max_tokens, stop_token_ids: backend.model.eosTokenIds };
      return Array.from({ length: n }, (_, i) => ({ prompt_ids, params: fitted, seed: seedOf(seed, p * n + i) }));
    });
    const drawn = await backend.sample(requests, { signal: io.signal });
    for (const [i, { tokens, finish_reason }] of drawn.entries()) {
      const prompt = prompts[Math.floor(i / n)]!;
      const { prompt_ids } = requests[i]!;
      const text = options.chat ? tokenizer.decode(tokens) : continuation(tokenizer, { prompt_ids, tokens });
      if (options.json) io.out(`${JSON.stringify({ prompt, text, tokens, finish_reason })}\n`);
      else io.out(`${prompt}${text}\n`);
    }
  } finally {
    backend.close();
  }
}

/** @throws {ConfigError} without a prompt, with two sources of them, or for a row without one */
async function promptsOf({ prompt, prompts }: Input["options"], io: Io): Promise<string[]> {
  if ((prompt === undefined) === (prompts === undefined))
    throw new ConfigError("Cannot sample: give --prompt TEXT or --prompts FILE, one of the two.", { kind: "usage" });
  if (prompts === undefined) return [prompt === "-" ? await io.stdin() : String(prompt)];
  const { readRows } = await import("../../train/run/task/datasets.ts");
  return (await readRows([String(prompts)], "train")).map(({ row, file, line }) => {
    const text = ["prompt", ...OTHER_PROMPT_KEYS].map((key) => row[key]).find((value) => typeof value === "string");
    if (text !== undefined) return text as string;
    throw new ConfigError(
      `Cannot sample: the row has no text as prompt, instruction or question (it has ${Object.keys(row).join(", ")}).`,
      { file, line },
    );
  });
}

/** The text that the tokens add. Decoded alone, a first token loses the space before it in vocabularies that mark spaces. */
function continuation(
  tokenizer: Tokenizer,
  { prompt_ids, tokens }: { prompt_ids: readonly number[]; tokens: readonly number[] },
): string {
  const before = tokenizer.decode(prompt_ids);
  const whole = tokenizer.decode([...prompt_ids, ...tokens]);
  return whole.startsWith(before) ? whole.slice(before.length) : tokenizer.decode(tokens);
}

function chatPrompt(
  content: string,
  { tokenizer, folder }: { tokenizer: Tokenizer; folder: string },
): readonly number[] {
  if (tokenizer.chatTemplate === undefined) {
    throw new ConfigError(
      `Cannot use --chat: the model in ${folder} has no chat template. Leave --chat out to continue the text as it is, or give a template with --chat-template FILE (plain for a simple one).`,
    );
  }
  return new Transcript({ tokenizer }).prompt([{ role: "user", content }]).ids;
}
