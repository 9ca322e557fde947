/** A user's own policy loss: one function of a token, in TypeScript or in WGSL joined to the fused pass. */
import type { ParamTypes } from "../../compute/kernel.ts";
import { loadShader } from "../../compute/shader.ts";
import { LOGITS_TEMPERATURE } from "../../contract/engine.ts";
import { ConfigError, UnsupportedError } from "../../errors.ts";
import type { SettingsSchema } from "../settings.ts";
import type { LossPlan, LossSettings, MetricNames, Token, TokenLoss } from "./definition.ts";
import { definePass } from "./kernels.ts";
import { registerLoss } from "./losses.ts";

/** A policy loss of your own: one function of a token, in TypeScript and optionally in WGSL. See {@link defineLoss}. */
export interface CustomLoss<S extends LossSettings = LossSettings> {
  readonly name: string;
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

/** Sections of loss/policy.wgsl that a user's loss replaces. */
const SETTINGS_SECTION = /\/\/--- settings ---[\s\S]*?\/\/--- end of settings ---/;
const LOSSES_SECTION = /\/\/--- losses ---[\s\S]*?\/\/--- end of losses ---/;

/** Scalars of a struct inside a uniform are padded to whole vectors of four. */
const SCALARS_PER_VECTOR = 4;

/**
 * Registers a loss under its name, for specs, configurations and the CLI.
 * @throws {ConfigError} when the name is taken, when neither form is given, when a setting has a reserved name, or when `wgsl` lacks its function
 */
export async function defineLoss<S extends LossSettings>(loss: CustomLoss<S>): Promise<void> {
  const { name, settings, schema, wgsl } = loss;
  if (!wgsl && !loss.token)
    throw new ConfigError(`Cannot register the loss ${name}: it has no form. Give token, wgsl, or both.`, {
      path: "loss",
    });
  if (Object.hasOwn(settings, LOGITS_TEMPERATURE))
    throw new ConfigError(
      `Cannot register the loss ${name}: its setting ${LOGITS_TEMPERATURE} has the name of one that every loss has in \`grpu serve tinker\`, which would never hand it on. Rename it.`,
      { path: "loss" },
    );
  const planWith = (own: S): LossPlan => ({
    code: 0,
    settings: {},
    token: (t) => hostForm(loss)(t, own),
    metrics: loss.metrics ?? [null, null, null],
  });
  const custom = wgsl ? await wgslForm(loss, wgsl, planWith) : undefined;
  registerLoss({
    name,
    settings,
    ...(schema && { schema }),
    plan: (own) => ({ ...planWith(own as S), custom: custom?.(own) ?? null }),
  });
}

/** The fused pass of a WGSL loss, by its settings: their values are params, so that one pipeline serves all of them. */
async function wgslForm<S extends LossSettings>(
  loss: CustomLoss<S>,
  wgsl: string,
  planWith: (own: S) => LossPlan,
): Promise<(own: LossSettings) => NonNullable<LossPlan["custom"]>> {
  const params = settingParams(loss.settings);
  const names = Object.keys(params);
  const kernel = definePass({
    name: `loss ${loss.name}`,
    source: composeLoss(wgsl, names, await loadShader("loss/policy")),
    settings: Object.fromEntries(names.map((name) => [name, "f32"])) as ParamTypes,
    plan: {
      ...planWith(loss.settings),
      token: (t, values) => hostForm(loss)(t, values as unknown as S),
    },
  });
  return (own) => ({ kernel: kernel as never, params: { ...params, ...own } });
}

/**
 * The module of a WGSL loss: the user's text first, so that compilers count its lines from 1, then the frame.
 * @throws {ConfigError} when the text does not define `token_loss`
 */
export function composeLoss(wgsl: string, settings: readonly string[], frame: string): string {
  if (!/\bfn\s+token_loss\s*\(/.test(wgsl))
    throw new ConfigError(
      "Cannot join the loss to the fused pass: it does not define token_loss. Give `fn token_loss(t: Token) -> TokenLoss`.",
      { path: "wgsl" },
    );
  const fields = settings.map((name) => `  ${name}: f32,\n`).join("");
  const joined = frame.replace(SETTINGS_SECTION, `struct Settings {\n${fields}}`).replace(LOSSES_SECTION, "");
  return `${wgsl}\n${joined}`;
}

/** The settings and their padding, in the struct's order. */
function settingParams(settings: LossSettings): Record<string, number> {
  const params: Record<string, number> = { ...settings };
  const names = Object.keys(settings);
  const wanted = Math.max(Math.ceil(names.length / SCALARS_PER_VECTOR), 1) * SCALARS_PER_VECTOR;
  for (let k = names.length; k < wanted; k++) params[`padding${k}`] = 0;
  return params;
}

function hostForm<S extends LossSettings>({ name, token }: CustomLoss<S>): (t: Token, settings: S) => TokenLoss {
  if (token) return token;
  throw new UnsupportedError(`Cannot take the loss ${name} on the host: it has only a WGSL form. Give token too.`, {
    part: "loss",
    capability: name,
  });
}
