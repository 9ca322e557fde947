/** Checks a resolved configuration: types of mirrored values, mandatory settings, support of the backend, rules. */
import type { ComposeOptions } from "./compose_options.ts";
import { fitValue } from "./fields/fit.ts";
import { reasonOn, statusOf } from "./fields/support.ts";
import { interpolator } from "./hydra/interpolate.ts";
import type { Problem } from "./problem.ts";
import { AGGREGATION_RULES } from "./rules/aggregation.ts";
import { DISTILLATION_RULES } from "./rules/distillation.ts";
import { GDPO_RULES } from "./rules/gdpo.ts";
import { REMAX_RULES } from "./rules/remax.ts";
import { REWARD_MODEL_RULES } from "./rules/reward_model.ts";
import { checkRules } from "./rules/rules.ts";
import { SAMPLING_CLIENT_RULES } from "./rules/sampling_clients.ts";
import { SERVICE_RULES } from "./rules/services.ts";
import { STABLE_RULES } from "./rules/stable_reinforce.ts";
import { VERL_RULES } from "./rules/verl.ts";
import { type ConfigSchema, fieldAt } from "./schema.ts";
import { showSetting } from "./secret.ts";
import { TINKER_SHARED } from "./sync/tables.ts";
import { LEVEL, type Origin, type Origins, originOf } from "./yaml/layer.ts";
import { equalValues, getAt, hasInterpolation, MANDATORY, type Tree, type YamlValue } from "./yaml/tree.ts";

interface CheckContext {
  readonly schema: ConfigSchema;
  readonly origins: Origins;
  readonly options: ComposeOptions;
  /** The tree before interpolations were resolved. */
  readonly raw: Tree;
  readonly problems: Problem[];
}

type AddProblem = (severity: Problem["severity"], path: string, message: string) => void;

/** Adds findings to `problems`; a setting that already has a problem gets no further error. */
export function checkResolved(config: Tree, context: CheckContext): void {
  const { schema, origins, options, problems } = context;
  const reported = new Set(problems.map((problem) => problem.path));
  const addProblem: AddProblem = (severity, path, message) => {
    if (reported.has(path) && severity === "error") return;
    const origin = originOf(origins, path);
    problems.push({ severity, message, path, file: origin?.file, line: origin?.line });
  };
  for (const [path, origin] of origins) {
    const value = getAt(config, path);
    if (value !== undefined) checkSetting({ path, origin, value, config, addProblem }, context);
  }
  // The rules are about training runs.
  if ((options.base ?? "unified") !== "unified") return;
  const rules = {
    backend: schema.backend,
    isReady: !options.allowMissing,
    more: [
      ...[...VERL_RULES, ...SERVICE_RULES, ...DISTILLATION_RULES, ...AGGREGATION_RULES],
      ...[...REWARD_MODEL_RULES, ...REMAX_RULES, ...GDPO_RULES, ...STABLE_RULES, ...SAMPLING_CLIENT_RULES],
    ],
    isTyped: (path: string) => originOf(origins, path)?.level === LEVEL.override,
  };
  for (const finding of checkRules(config, rules)) addProblem(finding.severity, finding.path, finding.message);
}

interface Resolved {
  readonly path: string;
  readonly origin: Origin;
  readonly value: YamlValue;
  readonly config: Tree;
  readonly addProblem: AddProblem;
}

function checkSetting({ path, origin, value, config, addProblem }: Resolved, context: CheckContext): void {
  const { schema, options, raw } = context;
  const isFollowed = origin.from !== undefined || hasInterpolation(getAt(raw, path));
  const field = isFollowed ? fieldAt(schema, path) : undefined;
  if (field && field !== "open") {
    const { problem } = fitValue(path, field, value, options.registered);
    if (problem) addProblem("error", path, problem);
  }
  if (value === MANDATORY && !options.allowMissing && isNeeded(path, config))
    addProblem("error", path, missing(schema, path));
  if (origin.level < LEVEL.file || (origin.from !== undefined && !path.startsWith("rllm."))) return;
  const refusal = refuse(path, { schema, value, config });
  if (refusal === undefined) return;
  const by = origin.from === undefined ? "" : ` (set by ${origin.from})`;
  if (options.allowUnsupported) addProblem("warning", path, `${refusal}${by}. It has no effect.`);
  else addProblem("error", path, `${refusal}${by}. Remove it, or ignore it with --allow-unsupported.`);
}

/** A reward model's engine needs a name only when there is a reward model. */
function isNeeded(path: string, config: Tree): boolean {
  const section = /^(reward_model|reward\.reward_model)\.rollout\./.exec(path)?.[1];
  return section === undefined || getAt(config, `${section}.enable`) === true;
}

function missing(schema: ConfigSchema, path: string): string {
  const rows = schema.backend === "tinker" ? TINKER_SHARED : [];
  const shared = rows.find(({ native }) => native === path)?.rllm;
  return `Cannot run: ${path} is mandatory and not set. Write ${path}=VALUE${shared ? `, or ${shared}=VALUE` : ""}.`;
}

interface Written {
  readonly schema: ConfigSchema;
  readonly value: YamlValue;
  readonly config: Tree;
}

/** Returns the reason why the backend cannot honour a value; undefined for the default, which asks for nothing. */
function refuse(path: string, { schema, value, config }: Written): string | undefined {
  if (statusOf(path, schema.backend) !== "refused") return undefined;
  const usual = schema.fields.get(path)?.default;
  const resolved = hasInterpolation(usual) ? interpolator(config, {}).resolve(usual as YamlValue, path) : usual;
  if (equalValues(resolved, value)) return undefined;
  return `Cannot set ${path}=${showSetting(path, value)} on the ${schema.backend} backend: ${reasonOn(path, schema.backend)}`;
}
