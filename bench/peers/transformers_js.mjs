/**
 * transformers.js' `generate` by onnxruntime-node in float32, on the CPU or on WebGPU, of a folder that write_onnx.py wrote: the greedy
 * tokens, then decoding of one row.
 *
 *     node bench/peers/transformers_js.mjs --model DIR --device webgpu --prompt 1,403 --new-tokens 24 --greedy 16
 */
import { basename, dirname } from "node:path";
import { parseArgs } from "node:util";
import { require, skip, tell, timed } from "./timing.mjs";

const names = ["model", "device", "prompt", "new-tokens", "greedy"];
const options = Object.fromEntries(names.map((name) => [name, { type: "string" }]));
const { values } = parseArgs({ options });
const prompt = values.prompt.split(",").map(BigInt);
const { AutoModelForCausalLM, Tensor, env } = require("@huggingface/transformers");

env.allowRemoteModels = false;
env.localModelPath = `${dirname(values.model)}/`;
const model = await AutoModelForCausalLM.from_pretrained(basename(values.model), {
  device: values.device,
  dtype: "fp32",
  use_external_data_format: true,
}).catch((error) => skip(error.message));

async function generate(count) {
  const inputs = new Tensor("int64", BigInt64Array.from(prompt), [1, prompt.length]);
  const attention_mask = new Tensor("int64", new BigInt64Array(prompt.length).fill(1n), [1, prompt.length]);
  const out = await model.generate({ inputs, attention_mask, max_new_tokens: count, min_new_tokens: count });
  return out.tolist()[0].slice(prompt.length).map(Number);
}

tell({ greedy: await generate(Number(values.greedy)) });
const count = Number(values["new-tokens"]);
const { what, rate } = await timed("decode", () => generate(count), count);
tell({ what, tokens_per_s: rate });
process.exit(0);
