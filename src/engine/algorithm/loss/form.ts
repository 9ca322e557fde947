/** The form of a loss: one function of a token, in TypeScript and in WGSL joinShader to the fused pass. */

import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { loadShader } from "../../compute/shader.ts";
import { klEstimateWgsl } from "../kl/estimate.ts";
import { type PassKernel, passKernel } from "./pass_kernel.ts";
import { joinShader, paddedParams } from "./settings_struct.ts";
import type { TokenFunction } from "./token.ts";

/** A function of one token in both languages. */
export interface LossForm {
  readonly name: string;
  /** Fields of `params.settings` in the WGSL, in its order. */
  readonly params: readonly string[];
  /** @throws {UnsupportedError} for a form in WGSL alone */
  readonly token: TokenFunction;
  /** The fused pass with the form's WGSL; null for a form in TypeScript alone. */
  readonly kernel: PassKernel | null;
}

/** Parts of a form. Losses that compute the same function of a token share one form. */
export interface LossFormOptions<K extends string> {
  readonly name: string;
  readonly params: readonly K[];
  readonly token?: TokenFunction<Readonly<Record<K, number>>> | undefined;
  /**
   * `fn token_loss(t: Token) -> TokenLoss`, with the functions it calls. Its params are `params.settings.NAME`; `Token`,
   * `TokenLoss`, `bounded` and `count` are those of shaders/loss/policy.wgsl. Errors quote its own line numbers.
   */
  readonly wgsl?: string | undefined;
}

/** @throws {ConfigError} when `wgsl` lacks its function */
export function lossForm<const K extends string>({ name, params, token, wgsl }: LossFormOptions<K>): LossForm {
  const run = (token ?? (() => refuseHost(name))) as TokenFunction;
  if (wgsl === undefined) return { name, params, token: run, kernel: null };
  if (!/\bfn\s+token_loss\s*\(/.test(wgsl))
    throw new ConfigError(
      "Cannot join the loss to the fused pass: it does not define token_loss. Give `fn token_loss(t: Token) -> TokenLoss`.",
      { path: "wgsl" },
    );
  const kernel = passKernel({
    name: `loss/${name}`,
    source: async () => joinShader(wgsl, params, `${await loadShader("loss/policy")}\n${klEstimateWgsl()}`),
    params: paddedParams(params),
    token: run,
  });
  return { name, params, token: run, kernel };
}

function refuseHost(name: string): never {
  throw new UnsupportedError(`Cannot take the loss ${name} on the host: it has only a WGSL form. Give token too.`, {
    part: "loss",
    capability: name,
  });
}
