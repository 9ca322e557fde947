/** The policies of a batch, opened for its turn. */
import type { EnginePolicy } from "../../../engine/contract/engine.ts";
import { ConfigError, DeviceLostError, OutOfMemoryError } from "../../../leaves/errors.ts";
import type { JobPolicy } from "./batch.ts";

export class OpenPolicies {
  private readonly opened = new Map<JobPolicy, EnginePolicy>();
  private readonly failures = new Map<JobPolicy, unknown>();
  /** Those that need a batch of their own, or without the others. */
  private readonly excluded = new Set<JobPolicy>();
  /** Policies that all of them allow in one batch. */
  private most = Number.POSITIVE_INFINITY;

  /** The first one, which samples the batch. */
  get lead(): EnginePolicy | undefined {
    return this.opened.values().next().value;
  }

  /** A policy that {@link add} has opened. */
  of(source: JobPolicy): EnginePolicy {
    return this.opened.get(source)!;
  }

  /**
   * A policy of the batch, opened where it was not.
   * @returns undefined where the policies before it leave no room for it, or cannot be mixed with it.
   * @throws what opening it throws
   */
  async add(source: JobPolicy): Promise<EnginePolicy | undefined> {
    const opened = this.opened.get(source);
    if (opened) return opened;
    if (this.failures.has(source)) throw this.failures.get(source);
    if (this.opened.size >= this.most || this.excluded.has(source)) return undefined;
    const policy = await this.open(source);
    if (policy && this.accepts(policy)) {
      this.most = Math.min(this.most, policy.mostMixed ?? 1);
      this.opened.set(source, policy);
      return policy;
    }
    if (policy) source.close();
    this.excluded.add(source);
    return undefined;
  }

  private accepts(policy: EnginePolicy): boolean {
    const { lead } = this;
    return !lead || (this.opened.size < (policy.mostMixed ?? 1) && lead.mixes?.(policy) === true);
  }

  /** @returns undefined where memory is short because of the others: alone it may fit. */
  private async open(source: JobPolicy): Promise<EnginePolicy | undefined> {
    try {
      return await source.open();
    } catch (error) {
      if (this.lead && isShortage(error)) return undefined;
      if (!(error instanceof DeviceLostError)) this.failures.set(source, error);
      throw error;
    }
  }

  /** Closes those that no job needs, except the one that samples the batch, so that others have their room. */
  keep(needed: ReadonlySet<JobPolicy>): void {
    const [, ...others] = this.opened.keys();
    for (const source of others.filter((source) => !needed.has(source))) {
      source.close();
      this.opened.delete(source);
    }
  }

  close(): void {
    for (const source of this.opened.keys()) source.close();
    this.opened.clear();
  }
}

function isShortage(error: unknown): boolean {
  return error instanceof OutOfMemoryError || (error instanceof ConfigError && error.path === "base_model");
}
