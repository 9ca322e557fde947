/**
 * Sampling and training next to other systems on the same processor, in one run: PyTorch eager and compiled on random weights of
 * stories260k's shape, or with `--model DIR` transformers' `generate` and llama.cpp on that model's own weights. Each is optional
 * (`PYTHON` names the interpreter that has them), checked before it is timed, and ended after {@link PEER_SECONDS}.
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { LocalBackend } from "../src/backend/local/backend.ts";
import type { Device } from "../src/compute/device.ts";
import type { SampleRequest } from "../src/contract/backend.ts";
import { exportFolder } from "../src/model/export.ts";
import { check, count, heading, openBenchDevice, remark, time } from "./harness.ts";
import { BATCH, LENGTH, LORA, samplingRate, trainingRate } from "./model_bench.ts";
import { peerModel } from "./options.ts";

const PEER_SECONDS = 100;
const PROMPT_TOKENS = 2;
const NEW_TOKENS = 120;
/** Greedy tokens that must be the same. */
const GREEDY = 16;

/** Tokens per second by what was done. */
type Rates = Readonly<Record<string, number>>;

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  try {
    const folder = peerModel(process.argv.slice(2));
    if (folder === undefined) await nextToTorch(device);
    else await nextToSamplers(device, folder);
  } finally {
    device.destroy();
  }
}

async function nextToTorch(device: Device): Promise<void> {
  heading(`stories260k's shape, ${BATCH} sequences of ${LENGTH} tokens, on ${device.info.description}`);
  const own: Rates = {
    sample: (await samplingRate(device)).rate,
    train_full: (await trainingRate(device)).rate,
    train_lora: (await trainingRate(device, { lora: LORA })).rate,
  };
  const size = ["--batch", `${BATCH}`, "--length", `${LENGTH}`];
  compare("PyTorch eager", own, linesOf("peer_torch.py", size));
  compare("PyTorch compiled", own, linesOf("peer_torch.py", [...size, "--compile"]));
}

async function nextToSamplers(device: Device, folder: string): Promise<void> {
  const backend = await LocalBackend.open(folder, { device, lora: { rank: 4 } });
  const { contextLength, name } = backend.model;
  const prompt = Array.from({ length: PROMPT_TOKENS }, (_, i) => i * 400 + 1);
  const fresh = Math.min(NEW_TOKENS, contextLength - PROMPT_TOKENS);
  heading(`${name}: ${fresh} tokens, one greedy row and ${BATCH} sampled, on ${device.info.description}`);
  const draw = (rows: number, max_tokens: number, temperature: number) => {
    const params = { max_tokens, temperature, top_p: 1, top_k: -1, stop_token_ids: [] };
    return backend.sample(
      Array.from({ length: rows }, (_, seed): SampleRequest => ({ prompt_ids: prompt, seed, params })),
    );
  };
  const greedy = (await draw(1, GREEDY, 0))[0]!.tokens;
  const own: Rates = {
    decode: fresh / (await time(() => draw(1, fresh, 0), { rounds: 3 })).median,
    sample: (BATCH * fresh) / (await time(() => draw(BATCH, fresh, 1), { rounds: 3 })).median,
  };
  const scratch = mkdtempSync(join(tmpdir(), "grpu-peers-"));
  try {
    const work = [
      "--prompt",
      prompt.join(),
      "--batch",
      `${BATCH}`,
      "--new-tokens",
      `${fresh}`,
      "--greedy",
      `${GREEDY}`,
    ];
    const threads = ["--threads", `${availableParallelism()}`];
    const next = (peer: string, script: string, model: string) =>
      compare(peer, own, linesOf(script, ["--model", model, ...work, ...threads]), greedy);
    next("transformers generate", "peers/hf_generate.py", folder);
    await exportFolder(folder, { out: scratch, gguf: "f16" });
    const file = readdirSync(scratch).find((name) => name.endsWith(".gguf"))!;
    next("llama.cpp, f16", "peers/llama_cpp.py", join(scratch, file));
  } finally {
    rmSync(scratch, { recursive: true });
    backend.languageModel.release();
  }
}

interface PeerLine {
  readonly what?: string;
  readonly tokens_per_s?: number;
  readonly greedy?: readonly number[];
  readonly skipped?: string;
}

/** Prints our rates, the peer's, and their ratios. @param greedy our tokens, where the peer tells its own */
function compare(peer: string, own: Rates, lines: readonly PeerLine[], greedy?: readonly number[]): void {
  for (const { skipped } of lines) if (skipped) remark(`${peer} skipped: ${skipped}`);
  const theirs = lines.find((line) => line.greedy)?.greedy;
  if (greedy && theirs) check(`${theirs}` === `${greedy}`, `${peer}: its greedy tokens are ${theirs}, ours ${greedy}`);
  for (const { what, tokens_per_s: rate } of lines) {
    if (what === undefined || rate === undefined || own[what] === undefined) continue;
    const title = `${what.replace("_", ", ")}, of ${peer}`;
    remark(`${title}: ${own[what].toFixed(0)} next to ${rate.toFixed(0)} tokens/s`);
    count({ what: title, value: own[what] / rate, unit: "times its rate", isGain: true });
  }
}

/** What a peer's script prints, as far as it comes within {@link PEER_SECONDS}. */
function linesOf(script: string, args: readonly string[]): PeerLine[] {
  const path = fileURLToPath(new URL(script, import.meta.url));
  const python = process.env.PYTHON ?? "python3";
  const { stdout, stderr, error, status } = spawnSync(python, [path, ...args], {
    encoding: "utf8",
    timeout: PEER_SECONDS * 1000,
    maxBuffer: 2 ** 26,
  });
  const lines = (stdout ?? "")
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line) as PeerLine);
  if (status === 0) return lines;
  const isLate = (error as NodeJS.ErrnoException | undefined)?.code === "ETIMEDOUT";
  const why = isLate ? `ended after ${PEER_SECONDS} s` : (error?.message ?? stderr.trim().split("\n").at(-1));
  return [...lines, { skipped: `${script}: ${why}` }];
}
