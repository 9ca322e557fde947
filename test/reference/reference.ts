/** Runs reference.py: a model with random weights in a temporary folder, and the figures that transformers computes for it. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { diskFile } from "../../src/engine/model/files/disk.ts";
import { openSafetensors, type SafetensorsFile } from "../../src/engine/model/files/safetensors.ts";

/** Made by .ci/run, or named by the environment; undefined where there is neither. */
export const PYTHON = [process.env.REFERENCE_PYTHON, fromRoot(".cache/transformers/bin/python")].find(
  (path) => path !== undefined && existsSync(path),
);

function fromRoot(path: string): string {
  return fileURLToPath(new URL(`../../${path}`, import.meta.url));
}

export interface ReferenceRequest {
  /** Keys of config.json. */
  readonly config: Readonly<Record<string, unknown>>;
  /** Of the stored weights; the figures are computed in float32 from them. */
  readonly dtype: "bfloat16" | "float32";
  readonly seed: number;
  readonly sequences: readonly (readonly number[])[];
  /** 1 for the tokens whose log-probs count, per sequence. */
  readonly masks: readonly (readonly number[])[];
  /** Tokens to continue the first sequence with. */
  readonly greedy: number;
  readonly gradients: boolean;
  /** Stores the layers' matrices in blocks of 64 before computing. */
  readonly quantization?: "int8" | "nf4" | undefined;
  readonly lora?: LoraRequest | undefined;
  /** Absent: the loss is the negative likelihood. */
  readonly policy_loss?: PolicyLoss | undefined;
}

export interface LoraRequest {
  readonly rank: number;
  readonly alpha: number;
  readonly targets: readonly string[];
  /** Of the random factors. */
  readonly deviation: number;
}

/** PPO's clipped surrogate, averaged over the masked tokens. */
export interface PolicyLoss {
  /** Old log-probs minus the current ones, per masked token. */
  readonly shift: readonly number[];
  readonly advantages: readonly number[];
  readonly clip: number;
}

export interface Reference {
  /** Holds model/ and, with an adapter, adapter/. */
  readonly folder: string;
  readonly figures: SafetensorsFile;
}

/** Computes the figures, gives them to `use`, and removes the folder. */
export async function withReference(request: ReferenceRequest, use: (it: Reference) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "grpu-reference-"));
  try {
    await compute({ ...request, out: folder });
    const file = await diskFile(join(folder, "expected.safetensors"));
    if (!file) throw new Error(`No figures in ${folder}`);
    await use({ folder, figures: await openSafetensors(file) });
  } finally {
    await rm(folder, { recursive: true });
  }
}

function compute(request: object): Promise<void> {
  const child = spawn(PYTHON!, [fromRoot("test/reference/reference.py")], { stdio: ["pipe", "ignore", "pipe"] });
  let errors = "";
  child.stderr.on("data", (text) => {
    errors += text;
  });
  child.stdin.end(JSON.stringify(request));
  return new Promise((resolve, reject) => {
    child.on("close", (code) =>
      code === 0 ? resolve() : reject(new Error(`reference.py exited with ${code}:\n${errors}`)),
    );
  });
}
