/**
 * Sampling and training next to other systems on the same processor, in one run: PyTorch eager and compiled on random weights of
 * stories260k's shape, and products next to jax-js on the same adapter; with `--model DIR` transformers' `generate` and llama.cpp on that model's own weights;
 * with `--large` these, PyTorch and transformers.js on random weights in Qwen2.5-0.5B's shape, one row. Each is optional (`PYTHON` names the interpreters that
 * have them, separated as in `PATH`, `PEER_MODULES` the folder with `@huggingface/transformers` and `@jax-js/jax`), checked before it is timed, and ended after {@link PEER_SECONDS}.
 */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import type { Device } from "../src/engine/compute/device.ts";
import type { SampleRequest } from "../src/engine/contract/backend.ts";
import { exportFolder } from "../src/engine/model/export.ts";
import { loadModel, openModel } from "../src/engine/model/open_model.ts";
import { LocalBackend } from "../src/train/backend/local/backend.ts";
import { check, count, heading, openBenchDevice, remark, time } from "./harness.ts";
import { formatRate } from "./history.ts";
import { BATCH, LENGTH, LORA, samplingRate, trainingRate } from "./model_bench.ts";
import { comparesLarge, peerModel } from "./options.ts";
import { nextToJax } from "./peers/jax_products.ts";
import { linesOfNode, linesOfPython, type PeerLine } from "./peers/peer_process.ts";
import { QWEN_SHAPE, writeRandomModel } from "./peers/random_model.ts";

const PROMPT_TOKENS = 2;
const NEW_TOKENS = 120;
/** Of one row of the large model. */
const LARGE_NEW_TOKENS = 24;
/** Greedy tokens that must be the same. */
const GREEDY = 16;
/** Of transformers.js on WebGPU, whose kernels take seconds a token on a software adapter. */
const FEW_TOKENS = 2;

/** Tokens per second by what was done. */
type Rates = Readonly<Record<string, number>>;
/** How weights are held: as peers in float32 do, and as a file in bfloat16 has them, which gives the same bits. */
const HELD = ["float32", "bfloat16"] as const;
type Held = (typeof HELD)[number];
type OwnRates = Readonly<Partial<Record<Held, Rates>>>;

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  try {
    const folder = peerModel(process.argv.slice(2));
    if (comparesLarge(process.argv.slice(2))) await nextToLarge(device);
    else if (folder === undefined) {
      await nextToTorch(device);
      await nextToJax(device);
    } else await nextToSamplers(device, folder);
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
  compare("PyTorch eager", { float32: own }, linesOfPython("peer_torch.py", size));
  compare("PyTorch compiled", { float32: own }, linesOfPython("peer_torch.py", [...size, "--compile"]));
}

async function nextToLarge(device: Device): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "grpu-large-"));
  try {
    await writeRandomModel(folder, QWEN_SHAPE);
    await nextToSamplers(device, folder, { fresh: LARGE_NEW_TOKENS, batch: undefined, held: HELD });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** What is sampled: new tokens of a row, and the rows of a batch, where one is sampled too. */
interface Work {
  readonly fresh: number;
  readonly batch: number | undefined;
  readonly held: readonly Held[];
}

const ON_GIVEN_MODEL: Work = { fresh: NEW_TOKENS, batch: BATCH, held: ["float32"] };

async function nextToSamplers(device: Device, folder: string, work: Work = ON_GIVEN_MODEL) {
  const { greedy, own, prompt, fresh } = await ownRates(device, folder, work);
  const scratch = mkdtempSync(join(tmpdir(), "grpu-peers-"));
  try {
    const options = {
      prompt,
      batch: work.batch ?? 1,
      "new-tokens": fresh,
      greedy: GREEDY,
      threads: availableParallelism(),
    };
    const args = Object.entries(options).flatMap(([name, value]) => [`--${name}`, `${value}`]);
    const next = (peer: string, script: string, model: string) =>
      compare(peer, own, linesOfPython(script, ["--model", model, ...args]), greedy);
    if (work.batch === undefined) {
      next("PyTorch", "peers/torch_decode.py", folder);
      const lines = linesOfPython("peers/torch_decode.py", ["--model", folder, ...args, "--bfloat16"]);
      // It rounds each result to bfloat16, so that its tokens are its own.
      compare("PyTorch in bfloat16", own, lines);
    }
    next("transformers generate", "peers/hf_generate.py", folder);
    for (const gguf of ["f32", "f16"] as const) {
      const out = join(scratch, gguf);
      await exportFolder(folder, { out, gguf });
      next(`llama.cpp, ${gguf}`, "peers/llama_cpp.py", join(out, readdirSync(out)[0]!));
      rmSync(out, { recursive: true });
    }
    if (work.batch === undefined) nextToTransformersJs({ folder, scratch, own, greedy, prompt });
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

/** transformers.js, by onnxruntime on the CPU and on WebGPU. */
function nextToTransformersJs(it: {
  folder: string;
  scratch: string;
  own: OwnRates;
  greedy: readonly number[];
  prompt: readonly number[];
}) {
  const out = join(it.scratch, "onnx_model");
  const [written] = linesOfPython("peers/write_onnx.py", ["--model", it.folder, "--out", out]);
  if (written?.skipped) remark(`transformers.js skipped: ${written.skipped}`);
  if (!written || written.skipped) return;
  for (const [device, fresh, greedy] of [
    ["cpu", LARGE_NEW_TOKENS, GREEDY],
    ["webgpu", FEW_TOKENS, FEW_TOKENS],
  ] as const) {
    const work = { model: out, device, prompt: it.prompt, "new-tokens": fresh, greedy };
    const args = Object.entries(work).flatMap(([name, value]) => [`--${name}`, `${value}`]);
    const lines = linesOfNode("peers/transformers_js.mjs", args);
    compare(`transformers.js on ${device}`, it.own, lines, it.greedy.slice(0, greedy));
  }
}

/** Greedy tokens of one row, and our rates. */
async function ownRates(device: Device, folder: string, { fresh: most, batch, held }: Work) {
  const opened = await openModel(folder);
  const { contextLength } = opened.files.config;
  const prompt = Array.from({ length: PROMPT_TOKENS }, (_, i) => i * 400 + 1);
  const fresh = Math.min(most, contextLength - PROMPT_TOKENS);
  const rows = batch === undefined ? "one greedy row" : `one greedy row and ${batch} sampled`;
  heading(`${opened.mark.folder}: ${fresh} tokens, ${rows}, on ${device.info.description}`);
  const own: Partial<Record<Held, Rates>> = {};
  let greedy: readonly number[] | undefined;
  for (const dtype of held) {
    const model = await loadModel(device, opened, { frozen: true, dtype });
    const backend = new LocalBackend({ model, name: opened.mark.folder });
    const draw = (rows: number, max_tokens: number, temperature: number) => {
      const params = { max_tokens, temperature, top_p: 1, top_k: -1, stop_token_ids: [] };
      return backend.sample(
        Array.from({ length: rows }, (_, seed): SampleRequest => ({ prompt_ids: prompt, seed, params })),
      );
    };
    const tokens = (await draw(1, GREEDY, 0))[0]!.tokens;
    greedy ??= tokens;
    check(`${tokens}` === `${greedy}`, `held in ${dtype} the greedy tokens are ${tokens}, in ${held[0]} ${greedy}`);
    const rateOf = async (rows: number, temperature: number) =>
      (rows * fresh) / (await time(() => draw(rows, fresh, temperature), { rounds: 3 })).median;
    own[dtype] = { decode: await rateOf(1, 0), ...(batch !== undefined && { sample: await rateOf(batch, 1) }) };
    // Large models of this process and of a peer need not fit the memory together.
    model.release();
  }
  return { greedy: greedy!, own, prompt, fresh };
}

/** Prints our rates, the peer's, and their ratios. @param greedy our tokens, where the peer tells its own */
function compare(peer: string, own: OwnRates, lines: readonly PeerLine[], greedy?: readonly number[]): void {
  for (const { skipped } of lines) if (skipped) remark(`${peer} skipped: ${skipped}`);
  const theirs = lines.find((line) => line.greedy)?.greedy;
  if (greedy && theirs) check(`${theirs}` === `${greedy}`, `${peer}: its greedy tokens are ${theirs}, ours ${greedy}`);
  for (const held of HELD)
    for (const { what = "", tokens_per_s: rate } of lines) {
      const ours = own[held]?.[what];
      if (ours === undefined || rate === undefined) continue;
      const title = `${what.replace("_", ", ")}${held === "float32" ? "" : `, held in ${held}`}, of ${peer}`;
      remark(`${title}: ${formatRate(ours)} next to ${formatRate(rate)} tokens/s`);
      count({ what: title, value: ours / rate, unit: "times its rate", isGain: true });
    }
}
