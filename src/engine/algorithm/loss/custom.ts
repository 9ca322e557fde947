/** A user's own policy loss: one function of a token, in TypeScript or in WGSL joined to the fused pass. */

import { ConfigError } from "../../../leaves/errors.ts";
import { LOGITS_TEMPERATURE } from "../../contract/engine.ts";
import type { SettingsSchema } from "../settings.ts";
import type { MetricNames } from "./definition.ts";
import { lossForm } from "./form.ts";
import { registerLoss } from "./losses.ts";
import type { LossSettings, Token, TokenLoss } from "./token.ts";

/** A policy loss of your own: one function of a token, in TypeScript and optionally in WGSL. See {@link defineLoss}. */
export interface CustomLoss<S extends LossSettings = LossSettings> {
  readonly name: string;
  /** Description of the loss, in one line. */
  readonly describe?: string;
  /** Settings with their defaults; `rllm.algorithm.loss_args`, `--set` and a spec's `settings` change them. */
  readonly settings: S;
  /** Checks them and fills in defaults: a zod schema, or any object with `parse`. */
  readonly schema?: SettingsSchema<S>;
  /** Names of the three numbers that are averaged over trained tokens. */
  readonly metrics?: MetricNames;
  /** The loss in float64, for the host. Without `wgsl`, the only form. */
  readonly token?: (t: Token, settings: S) => TokenLoss;
  /**
   * `fn token_loss(t: Token) -> TokenLoss`, with the functions it calls. Its settings are `params.settings.NAME`;
   * `Token`, `TokenLoss`, `bounded` and `count` are those of shaders/loss/policy.wgsl. Errors quote its own line numbers.
   */
  readonly wgsl?: string;
}

/**
 * Registers a loss under its name, for specs, configurations and the CLI.
 * @throws {ConfigError} when the name is taken, when neither form is given, when a setting has a reserved name, or when `wgsl` lacks its function
 */
export async function defineLoss<S extends LossSettings>(loss: CustomLoss<S>): Promise<void> {
  const { name, describe, settings, schema, wgsl, token, metrics = [null, null, null] } = loss;
  if (!wgsl && !token)
    throw new ConfigError(`Cannot register the loss ${name}: it has no form. Give token, wgsl, or both.`, {
      path: "loss",
    });
  if (Object.hasOwn(settings, LOGITS_TEMPERATURE))
    throw new ConfigError(
      `Cannot register the loss ${name}: its setting ${LOGITS_TEMPERATURE} has the name of one that every loss has in \`grpu serve tinker\`, which would never hand it on. Rename it.`,
      { path: "loss" },
    );
  const params = Object.keys(settings);
  const form = lossForm({ name, params, token: token as ((t: Token, p: LossSettings) => TokenLoss) | undefined, wgsl });
  registerLoss({
    name,
    describe,
    settings,
    schema: schema as SettingsSchema<LossSettings> | undefined,
    plan: (settings) => ({ form, params: settings, metrics }),
  });
}
