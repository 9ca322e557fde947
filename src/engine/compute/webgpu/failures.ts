/** Failures on the GPU: errors of a submit, the driver's own, and a lost device, as typed errors of an awaited call. */
import { DeviceLostError, OutOfMemoryError, RemoteError } from "../../../leaves/errors.ts";
import { validationError } from "./pipeline.ts";

/** How long a failed wait gives the news of a lost device to arrive. */
const LOSS_GRACE_MS = 200;

/** Error scopes in an object, so that awaiting the submit does not await the scopes as well. */
export interface ErrorScopes {
  readonly results: readonly Promise<GPUError | null>[];
}

export class GpuFailures {
  private readonly gpuDevice: GPUDevice;
  private readonly lostSignal: Promise<unknown>;
  private lost: RemoteError | undefined;
  private uncaptured: Error | undefined;

  constructor(gpuDevice: GPUDevice) {
    this.gpuDevice = gpuDevice;
    this.lostSignal = gpuDevice.lost.then(({ reason, message }) => {
      this.lost ??= new DeviceLostError(message.trim() || reason || "no reason given");
    });
    // Errors outside our scopes (the driver's own) surface at the next awaited call.
    gpuDevice.onuncapturederror = (event) => {
      event.preventDefault?.();
      this.uncaptured ??= typedError(event.error);
    };
  }

  /** Calls from now on reject with `reason`, unless the device was lost before. */
  end(reason: RemoteError): void {
    this.lost ??= reason;
  }

  get isLost(): boolean {
    return this.lost instanceof DeviceLostError;
  }

  throwIfLost(): void {
    if (this.lost) throw this.lost;
  }

  /** Waits for work that a lost device ends with errors of another kind, or with none. */
  async unlessLost<T>(work: Promise<T>): Promise<T> {
    try {
      const result = await work;
      this.throwIfLost();
      return result;
    } catch (error) {
      await this.throwLoss();
      throw error;
    }
  }

  /** Gives the news of a loss, which comes after the errors that it causes, time to arrive. @throws DeviceLostError */
  private async throwLoss(): Promise<void> {
    await Promise.race([this.lostSignal, new Promise((resume) => setTimeout(resume, LOSS_GRACE_MS))]);
    this.throwIfLost();
  }

  /** Runs `submit` within error scopes, whose results come later. */
  scoped(submit: () => void): ErrorScopes {
    this.gpuDevice.pushErrorScope("validation");
    this.gpuDevice.pushErrorScope("out-of-memory");
    submit();
    return { results: [this.gpuDevice.popErrorScope(), this.gpuDevice.popErrorScope()] };
  }

  /** Waits for `done`, then throws what went wrong in it or in its submit. */
  async settle(scopes: ErrorScopes, done: Promise<unknown>): Promise<void> {
    const errors = Promise.all(scopes.results).then(
      (found) => found.find((error) => error !== null),
      () => undefined,
    );
    try {
      await done;
    } catch (cause) {
      await this.throwLoss();
      const found = await errors;
      throw found ? typedError(found) : new RemoteError(`Cannot finish the GPU work: ${cause}`, { retryable: false });
    }
    const found = await errors;
    const error = found ? typedError(found) : this.uncaptured;
    this.uncaptured = undefined;
    this.throwIfLost();
    if (error) throw error;
  }
}

/** The class is found by its name, because Node has no global of it. */
function typedError(error: GPUError): Error {
  if (error.constructor.name !== "GPUOutOfMemoryError") return validationError(error.message);
  return new OutOfMemoryError(
    `Cannot run the recorded GPU work: the driver is out of memory (${error.message.trim()}). Lower memory_budget_bytes, or close other programs that use this GPU.`,
    { label: "the recorded work", bytes: 0 },
  );
}
