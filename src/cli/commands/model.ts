/** `grpu model ...`: tokens in, numbers out. For tests of other programs, and for pipelines. */

import { ConfigError } from "../../leaves/errors.ts";
import type { LocalBackend } from "../../train/backend/local/backend.ts";
import type { Command, Input, Io } from "../command.ts";
import { ADAPTER, DEVICE, deviceOf } from "../options.ts";
import { BASE, MODEL, modelSamplingParams, numberOption, SAMPLING_OPTIONS } from "./model_options.ts";

export const modelCommands: readonly Command[] = [
  {
    path: "model score",
    summary: "print log-probabilities and entropies of token sequences",
    options: [
      MODEL,
      BASE,
      {
        flag: "--input",
        value: "FILE",
        describe: 'JSONL with {"tokens": [...]} a line; - is standard input',
        required: true,
      },
      { flag: "--temperature", value: "T", describe: "divides the logits", default: "1" },
      DEVICE,
      ...ADAPTER,
      { flag: "--json", describe: "accepted; the output is always JSONL" },
    ],
    examples: [
      "grpu model score --model ./stories260k --input tokens.jsonl --json",
      "echo '{\"tokens\":[1,403,407]}' | grpu model score --model ./stories260k --input -",
    ],
    notes:
      'Prints {"logprobs": [...], "entropy": [...]} for each line: element t belongs to tokens[t+1], given tokens[0..t].',
    run: score,
  },
  {
    path: "model generate",
    summary: "sample tokens that continue a sequence",
    options: [
      MODEL,
      BASE,
      { flag: "--tokens", value: "IDS", describe: "the prompt, as 1,2,3", required: true },
      ...SAMPLING_OPTIONS,
      { flag: "--ignore-eos", describe: "continue after an end token" },
      DEVICE,
      ...ADAPTER,
      { flag: "--json", describe: "accepted; the output is always JSON" },
    ],
    examples: ["grpu model generate --model ./stories260k --tokens 1,403,407 --max-tokens 20 --temperature 0 --json"],
    notes: 'Prints {"tokens": [...], "logprobs": [...]} of the new tokens, including an end token.',
    run: generate,
  },
];

async function withModel(
  { options, io }: { options: Input["options"]; io: Io },
  use: (backend: LocalBackend) => Promise<void>,
): Promise<void> {
  const { checkpointDir } = await import("../../train/run/model/checkpoint_dir.ts");
  const { openForInference } = await import("../../train/run/model/local_backend.ts");
  const folder = await checkpointDir(String(options.model), io);
  const base = options.base as string | undefined;
  const { backend } = await openForInference(folder, { on: deviceOf(options), base });
  try {
    await use(backend);
  } finally {
    backend.close();
  }
}

async function score({ options }: Input, io: Io): Promise<void> {
  const temperature = numberOption(options.temperature, { flag: "--temperature", least: Number.MIN_VALUE });
  const { readText } = await import("../../train/run/files.ts");
  const file = String(options.input);
  const text = file === "-" ? await io.stdin() : readText(file, "token file");
  const sequences = readSequences(text, file);
  await withModel({ options, io }, async (backend) => {
    const offsets = new Uint32Array(sequences.length + 1);
    sequences.forEach((tokens, i) => {
      offsets[i + 1] = offsets[i]! + tokens.length;
    });
    const rows = { tokens: Uint32Array.from(sequences.flat()), offsets };
    const { logprobs, entropy } = await backend.logprobs(rows, { policy: "current", temperature });
    for (let i = 0; i < sequences.length; i++) {
      // The first token has nothing before it.
      const [from, to] = [offsets[i]! + 1, offsets[i + 1]];
      const line = { logprobs: [...logprobs.subarray(from, to)], entropy: [...entropy.subarray(from, to)] };
      io.out(`${JSON.stringify(line)}\n`);
    }
  });
}

/** @throws {ConfigError} naming the line that has no list of token ids. */
function readSequences(text: string, file: string): number[][] {
  const sequences = text.split("\n").flatMap((line, i) => {
    if (line.trim() === "") return [];
    const tokens = parseTokens(line);
    if (tokens) return [tokens];
    throw new ConfigError('Cannot score the line: it is not {"tokens": [...]} with one id or more.', {
      file,
      line: i + 1,
    });
  });
  if (sequences.length > 0) return sequences;
  throw new ConfigError("Cannot score the input: it is empty. Write one sequence a line.", { file });
}

function parseTokens(line: string): number[] | undefined {
  try {
    const { tokens } = JSON.parse(line) as { tokens?: unknown };
    return Array.isArray(tokens) && tokens.length > 0 && tokens.every(isTokenId) ? tokens : undefined;
  } catch {
    return undefined;
  }
}

function isTokenId(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0;
}

async function generate({ options }: Input, io: Io): Promise<void> {
  const prompt_ids = String(options.tokens)
    .split(",")
    .map((part) => (part.trim() === "" ? Number.NaN : Number(part)));
  if (!prompt_ids.every(isTokenId)) {
    throw new ConfigError(
      `Cannot read --tokens: it is not a list of token ids (${options.tokens}). Write ids like 1,2,3.`,
    );
  }
  const params = modelSamplingParams(options);
  const seed = numberOption(options.seed, { flag: "--seed", least: 0 });
  await withModel({ options, io }, async (backend) => {
    const stop_token_ids = options.ignoreEos ? [] : backend.model.eosTokenIds;
    const request = { prompt_ids, params: { ...params, stop_token_ids }, seed };
    const [sequence] = await backend.sample([request], { signal: io.signal });
    io.out(`${JSON.stringify({ tokens: sequence!.tokens, logprobs: sequence!.logprobs })}\n`);
  });
}
