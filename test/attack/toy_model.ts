/** A model that costs nothing, so that what a server spends is the server's own. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Engine, EnginePolicy, LossRows, Trainer, TrainerConfig } from "../../src/engine/contract/engine.ts";
import { writeFolder } from "../../src/engine/model/files/disk.ts";

export const CONTEXT = 512;
/** Of each trainer and policy. */
export const TOY_BYTES = 10;

export class ToyModel implements Engine {
  readonly folder = "/models/toy";
  readonly fingerprint = "toy weights";
  readonly architecture = "toy";
  readonly vocabSize = 32_000;
  readonly contextLength = CONTEXT;
  readonly parameters = 1;
  readonly eosTokenIds = [2];
  readonly device = "toy";
  readonly losses = ["cross_entropy"];
  readonly memory = { live: 1, peak: 2, budget: 3 };
  private readonly weightBytes: number;

  constructor(options: { readonly weightBytes?: number } = {}) {
    this.weightBytes = options.weightBytes ?? 100;
  }

  decode(ids: readonly number[]): string {
    return "x".repeat(ids.length);
  }

  checkLoss(): void {}

  async createTrainer(config: TrainerConfig): Promise<Trainer> {
    return new ToyTrainer(config, { weightBytes: this.weightBytes, memory: this.memory });
  }

  async openPolicy(): Promise<EnginePolicy> {
    return new ToyPolicy(this.memory);
  }

  close(): void {}
}

/** Counts what is open in the engine's `memory.live`. */
abstract class Held {
  readonly bytes = TOY_BYTES;
  protected readonly memory: { live: number };

  constructor(memory: { live: number }) {
    this.memory = memory;
    memory.live += this.bytes;
  }

  release(): void {
    this.memory.live -= this.bytes;
  }
}

class ToyTrainer extends Held implements Trainer {
  readonly config: TrainerConfig;
  step = 0;
  private readonly weightBytes: number;

  constructor(config: TrainerConfig, of: { readonly weightBytes: number; readonly memory: { live: number } }) {
    super(of.memory);
    this.config = config;
    this.weightBytes = of.weightBytes;
  }

  async forwardBackward(rows: LossRows) {
    const zeros = new Float32Array(rows.targets.length);
    return { logprobs: zeros, losses: zeros, metrics: { "loss:sum": 1 } };
  }

  async clearGradients(): Promise<void> {}

  async optimStep() {
    this.step++;
    return {};
  }

  async freeze(): Promise<EnginePolicy> {
    return new ToyPolicy(this.memory);
  }

  /** Every file of a checkpoint says which step it is of. */
  async save(dir: string, { optimizer }: { optimizer: boolean }): Promise<void> {
    const content = String(this.step).padEnd(this.weightBytes, "\n");
    const names = ["adapter_model.safetensors", ...(optimizer ? ["optimizer.safetensors"] : [])];
    await writeFolder(
      dir,
      names.map((name) => ({ name, content })),
    );
  }

  async load(dir: string): Promise<void> {
    this.step = Number((await readFile(join(dir, "adapter_model.safetensors"), "utf8")).trim());
  }
}

class ToyPolicy extends Held implements EnginePolicy {
  async sample(requests: readonly unknown[]) {
    return requests.map(() => ({
      tokens: [2],
      logprobs: [0],
      finish_reason: "stop" as const,
      weight_version: 0,
    }));
  }

  async scorePrompts(prompts: readonly (readonly number[])[]) {
    return prompts.map(({ length }) => ({ logprobs: new Float32Array(length) }));
  }
}
