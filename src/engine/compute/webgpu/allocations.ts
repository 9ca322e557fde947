/** Buffers as the driver gives them: whether it refused one is known only later, before the work that uses it is submitted. */
import { refusedByDriver } from "../memory.ts";
import { validationError } from "./pipeline.ts";
import type { GpuBuffer, GpuDevice, GpuError } from "./types.ts";

const { STORAGE, COPY_SRC, COPY_DST } = { COPY_SRC: 0x4, COPY_DST: 0x8, STORAGE: 0x80 };

/** Holder of a range's bytes. Slices share it, so that a buffer that the driver refused is replaced under all of them. */
export interface Storage {
  buffer: GpuBuffer;
  /** `unchecked` until the driver's answer is known. */
  state: "unchecked" | "ready" | "refused";
}

/** An allocation whose answer is awaited. */
interface Unchecked {
  readonly storage: Storage;
  readonly size: number;
  readonly label: string;
  readonly answer: Answer;
  /** Answers to the host's writes. What it wrote is lost if the driver refused the buffer: no second try then. */
  readonly writes: Answer[];
}
type Answer = Promise<GpuError | null>;

export class Allocations {
  private readonly gpuDevice: GpuDevice;
  private unchecked: Unchecked[] = [];
  /** Number of allocations without an answer yet, or refused and not tried again. */
  private open = 0;

  constructor(gpuDevice: GpuDevice) {
    this.gpuDevice = gpuDevice;
  }

  create(size: number, label: string): Storage {
    const { buffer, answer } = this.attempt(size, label);
    const storage: Storage = { buffer, state: "unchecked" };
    this.open++;
    this.unchecked.push({ storage, size, label, answer, writes: [] });
    return storage;
  }

  /** Whether every buffer was granted. */
  get isSettled(): boolean {
    return this.open === 0;
  }

  /** Writes by the host, now. To a refused buffer they are errors of WebGPU's too, which say less than the refusal. */
  writing(storage: Storage, write: () => void): void {
    if (storage.state === "ready") {
      write();
      return;
    }
    this.gpuDevice.pushErrorScope("validation");
    write();
    const answer = this.answer();
    this.unchecked.findLast((allocation) => allocation.storage === storage)?.writes.push(answer);
  }

  /** The allocations since the last call, for {@link check}. */
  take(): readonly Unchecked[] {
    const taken = this.unchecked;
    this.unchecked = [];
    return taken;
  }

  /**
   * Waits for the driver's answers. A refused buffer is tried once more after `free` made room.
   * @throws OutOfMemoryError naming the first that stays refused
   */
  async check(taken: readonly Unchecked[], room: { free(): Promise<void>; live(): number }): Promise<void> {
    const answers = await Promise.all(taken.map(({ answer }) => answer));
    let freed: Promise<void> | undefined;
    let failure: Error | undefined;
    for (const [i, { storage, size, label, writes }] of taken.entries()) {
      let error = answers[i];
      if (error) {
        freed ??= room.free();
        await freed;
        if (writes.length === 0) error = await this.replace(storage, { size, label });
      }
      storage.state = error ? "refused" : "ready";
      if (error) failure ??= refusedByDriver({ label, bytes: size, live: room.live() }, error);
      else for (const wrong of await Promise.all(writes)) if (wrong) failure ??= validationError(wrong.message);
    }
    this.open -= taken.length;
    if (failure) throw failure;
  }

  private replace(storage: Storage, { size, label }: { size: number; label: string }): Answer {
    storage.buffer.destroy();
    const { buffer, answer } = this.attempt(size, label);
    storage.buffer = buffer;
    return answer;
  }

  private attempt(size: number, label: string): { buffer: GpuBuffer; answer: Answer } {
    this.gpuDevice.pushErrorScope("out-of-memory");
    const buffer = this.gpuDevice.createBuffer({ size, label, usage: STORAGE | COPY_SRC | COPY_DST });
    return { buffer, answer: this.answer() };
  }

  /** A lost device rejects its scopes; the calls that wait for work say so. */
  private answer(): Answer {
    return this.gpuDevice.popErrorScope().catch(() => null);
  }
}
