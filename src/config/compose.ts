/**
 * From files and overrides to one resolved configuration in which every value knows where it came from.
 * Synchronous, and free of any runtime: files and environment come in as parameters.
 */

import { fitValue, type Registered } from "./fields/fit.ts";
import { reasonOn, statusOf, TRAINS } from "./fields/support.ts";
import { collectChoices } from "./hydra/choices.ts";
import { layPackaged, refuseTreeChoices } from "./hydra/groups.ts";
import { type Env, interpolator } from "./hydra/interpolate.ts";
import { type Override, parseOverride } from "./hydra/override.ts";
import { applyOverride, checkUserTree, type Intake } from "./intake.ts";
import { type Problem, throwProblems } from "./problem.ts";
import { checkRules } from "./rules/rules.ts";
import { VERL_RULES } from "./rules/verl.ts";
import { BACKENDS, type BackendName, fieldAt, type Schema, schemaOf } from "./schema.ts";
import { maskOverride, showSetting } from "./secret.ts";
import { draftOf, syncShared } from "./sync/sync.ts";
import { LOCAL_SHARED, TINKER_SHARED } from "./sync/tables.ts";
import { syncVerl } from "./sync/verl.ts";
import { otherVerlTree } from "./sync/verl_tree.ts";
import {
  type Layer,
  LEVEL,
  mergeTree,
  type Origins,
  originInFile,
  originOf,
  readLayer,
} from "./yaml/layer.ts";
import {
  equalValues,
  getAt,
  hasInterpolation,
  leaves,
  MANDATORY,
  setAt,
  type Tree,
  type Value,
} from "./yaml/tree.ts";

export interface ComposeOptions {
  /** The user's YAML files; a later one wins. */
  readonly files?: readonly string[];
  /** `key=value`, `rllm/backend=NAME`, ...; a later one wins, and all of them win over files. */
  readonly overrides?: readonly string[];
  /** Text of a user's file; undefined when there is none. */
  readonly readFile?: (path: string) => string | undefined;
  /** Text of a file that ships with the package, by its name under `config/`. */
  readonly readConfig: (name: string) => string | undefined;
  readonly env?: Env;
  /** Names that plug-ins registered, by setting: with a list, any other unknown name is an error. */
  readonly registered?: Registered;
  /** A setting that the backend cannot honour is a warning instead of an error. */
  readonly allowUnsupported?: boolean;
  /** Mandatory settings may still be `???`, for looking at a configuration. */
  readonly allowMissing?: boolean;
}

export interface Composed {
  /** Every setting, resolved. Read it with `setting(config, "rllm.rollout.n")`. */
  readonly config: Tree;
  readonly origins: Origins;
  readonly warnings: readonly Problem[];
  readonly backend: BackendName;
  readonly schema: Schema;
}

/** A configuration composed as far as possible, with its problems. */
export interface Attempt extends Composed {
  readonly problems: readonly Problem[];
}

/**
 * Composes a configuration: defaults < base.yaml < backend yaml < files < overrides, then synchronises the shared
 * settings, resolves interpolations and checks everything.
 *
 * @throws {ConfigError} that names every problem with its file, line and setting.
 */
export function composeConfig(options: ComposeOptions): Composed {
  const { problems, ...composed } = tryCompose(options);
  throwProblems(problems);
  return composed;
}

/** Like `composeConfig`, but returns the problems. */
export function tryCompose(options: ComposeOptions): Attempt {
  const problems: Problem[] = [];
  const layers = readUserLayers(options, problems);
  const overrides = readOverrides(options.overrides ?? [], problems);
  const choices = collectChoices(layers, overrides, {
    problems,
    backends: options.registered?.["rllm.backend"],
  });
  const [tree, native, origins]: [Tree, Tree, Origins] = [{}, {}, new Map()];
  problems.push(...layPackaged({ readConfig: options.readConfig, choices, tree, origins, native }));
  const chosen = choices.get("rllm/backend")?.choice ?? getAt(tree, "rllm.backend");
  const backend = BACKENDS.find((name) => name === chosen) ?? "local";
  if (backend !== "verl") problems.push(...refuseTreeChoices(choices, backend));
  const schema = schemaOf(backend, native);
  if (problems.some(({ path }) => path === "rllm/backend")) {
    // Without its backend a configuration cannot be checked: every setting would look unknown.
    return { config: tree, origins, warnings: [], backend, schema, problems };
  }
  const otherTree = otherVerlTree(options.readConfig, choices.get("verl")?.choice);
  const intake: Intake = { schema, registered: options.registered ?? {}, problems, otherTree };
  for (const layer of layers) {
    const accepted = checkUserTree(layer, intake);
    mergeTree(tree, accepted.tree, origins, (path) => originInFile(accepted, path));
  }
  for (const override of overrides) applyOverride(override, { ...intake, tree, origins });
  const chosenName = choices.get("rllm/backend")?.own ?? backend;
  if (getAt(tree, "rllm.backend") !== chosenName) {
    // A file names another backend than the command line.
    setAt(tree, "rllm.backend", chosenName);
    origins.set("rllm.backend", {
      level: LEVEL.override,
      text: choices.get("rllm/backend")?.by ?? "default",
    });
  }
  const engine = choices.get("model_engine");
  if (engine !== undefined && backend === "verl") {
    // A file names another engine than the command line.
    setAt(tree, "model_engine", engine.choice);
    origins.set("model_engine", { level: LEVEL.override, text: engine.by });
  }
  const draft = draftOf(tree, origins, options.env ?? {});
  if (backend === "verl") syncVerl(draft);
  else syncShared(draft, backend === "tinker" ? TINKER_SHARED : LOCAL_SHARED);
  problems.push(...inOrderOfLines(draft.warnings));
  const config = resolveTree(tree, { env: options.env ?? {}, origins, problems });
  checkResolved(config, { schema, origins, options, raw: tree, problems });
  const errors = problems.filter(({ severity }) => severity === "error");
  const warnings = problems.filter(({ severity }) => severity === "warning");
  return { config, origins, warnings, backend, schema, problems: errors };
}

function inOrderOfLines(problems: readonly Problem[]): Problem[] {
  const fileOf = ({ file = "" }: Problem) => file;
  return problems.toSorted((a, b) => fileOf(a).localeCompare(fileOf(b)) || (a.line ?? 0) - (b.line ?? 0));
}

function readUserLayers({ files = [], readFile }: ComposeOptions, problems: Problem[]): Layer[] {
  const layers: Layer[] = [];
  const load = (file: string, chain: readonly string[]): void => {
    const text = readFile?.(file);
    if (text === undefined || chain.includes(file)) {
      const why = text === undefined ? "there is no such file" : "it includes itself";
      problems.push({ severity: "error", message: `Cannot read the configuration ${file}: ${why}.` });
      return;
    }
    const layer = readLayer(text, { file, level: LEVEL.file });
    problems.push(...layer.problems);
    if (layer.problems.length > 0) return;
    let isPlaced = false;
    for (const entry of layer.defaults) {
      if (entry.kind === "self" && !isPlaced) {
        layers.push(layer);
        isPlaced = true;
      } else if (entry.kind === "file" && !PACKAGED_NAMES.test(entry.name)) {
        load(siblingOf(file, entry.name), [...chain, file]);
      }
    }
    if (!isPlaced) layers.push(layer);
  };
  for (const file of files) load(file, []);
  return layers;
}

/** Names in a defaults list that mean files of the package, which are always loaded. */
const PACKAGED_NAMES = /^\/?(unified|ppo_(megatron_)?trainer|base)$/;

function siblingOf(file: string, name: string): string {
  const folder = file.includes("/") ? file.slice(0, file.lastIndexOf("/") + 1) : "";
  const withEnding = /\.ya?ml$/.test(name) ? name : `${name}.yaml`;
  return withEnding.startsWith("/") ? withEnding : folder + withEnding;
}

function readOverrides(texts: readonly string[], problems: Problem[]): Override[] {
  return texts.flatMap((text) => {
    try {
      return [parseOverride(text)];
    } catch (error) {
      const key = text.replace(/^[+~]+/, "").split("=")[0]!;
      const message = (error as Error).message.replaceAll(text, maskOverride(text, key));
      problems.push({ severity: "error", message });
      return [];
    }
  });
}

interface ResolveContext {
  readonly env: Env;
  readonly origins: Origins;
  readonly problems: Problem[];
}

function resolveTree(tree: Tree, { env, origins, problems }: ResolveContext): Tree {
  const { at } = interpolator(tree, env);
  const resolved: Tree = {};
  const reported = new Set<string>();
  for (const [path, value] of leaves(tree)) {
    if (!hasInterpolation(value)) {
      setAt(resolved, path, Array.isArray(value) ? [...value] : value);
      continue;
    }
    try {
      setAt(resolved, path, structuredClone(at(path)) ?? null);
    } catch (error) {
      const origin = originOf(origins, path);
      const message = (error as Error).message.replace(/ \([^()]*\)$/, "");
      setAt(resolved, path, value);
      const isFollowUp =
        reported.has(message) && (message.includes("refers to itself") || (origin?.level ?? 0) < LEVEL.file);
      reported.add(message);
      if (isFollowUp) continue;
      problems.push({
        severity: "error",
        message: `${message} (in ${path}).`,
        path,
        file: origin?.file,
        line: origin?.line,
      });
    }
  }
  return resolved;
}

interface CheckContext {
  readonly schema: Schema;
  readonly origins: Origins;
  readonly options: ComposeOptions;
  /** The tree before interpolations were resolved. */
  readonly raw: Tree;
  readonly problems: Problem[];
}

function checkResolved(config: Tree, context: CheckContext): void {
  const { schema, origins, options, problems } = context;
  const reported = new Set(problems.map((problem) => problem.path));
  const tell = (severity: Problem["severity"], path: string, message: string) => {
    if (reported.has(path) && severity === "error") return;
    const origin = originOf(origins, path);
    problems.push({ severity, message, path, file: origin?.file, line: origin?.line });
  };
  for (const [path, origin] of origins) {
    const value = getAt(config, path);
    if (value === undefined) continue;
    const isFollowed = origin.from !== undefined || hasInterpolation(getAt(context.raw, path));
    const field = isFollowed ? fieldAt(schema, path) : undefined;
    if (field && field !== "open") {
      const fit = fitValue(path, field, value, options.registered);
      if (fit.problem) tell("error", path, fit.problem);
    }
    if (value === MANDATORY && !options.allowMissing && isNeeded(path, config))
      tell("error", path, missing(schema, path));
    if (origin.level < LEVEL.file || (origin.from !== undefined && !path.startsWith("rllm."))) continue;
    const refusal = refuse(path, { schema, value, config });
    if (refusal === undefined) continue;
    const by = origin.from === undefined ? "" : ` (set by ${origin.from})`;
    const cause = options.allowUnsupported
      ? ". It has no effect."
      : ". Remove it, or ignore it with --allow-unsupported.";
    tell(options.allowUnsupported ? "warning" : "error", path, refusal + by + cause);
  }
  if (!options.allowMissing && !TRAINS.includes(schema.backend)) {
    tell(
      "error",
      "rllm.backend",
      `Cannot train on ${schema.backend}: this version trains on ${TRAINS.join(" and ")}. Choose rllm/backend=${TRAINS[0]}.`,
    );
  }
  const rules = { backend: schema.backend, isReady: !options.allowMissing, more: VERL_RULES };
  for (const finding of checkRules(config, rules)) tell(finding.severity, finding.path, finding.message);
}

/** A reward model's engine needs a name only when there is a reward model. */
function isNeeded(path: string, config: Tree): boolean {
  const section = /^(reward_model|reward\.reward_model)\.rollout\./.exec(path)?.[1];
  return section === undefined || getAt(config, `${section}.enable`) === true;
}

function missing(schema: Schema, path: string): string {
  const rows = schema.backend === "tinker" ? TINKER_SHARED : [];
  const shared = rows.find(({ native }) => native === path)?.rllm;
  return `Cannot run: ${path} is mandatory and not set. Write ${path}=VALUE${shared ? `, or ${shared}=VALUE` : ""}.`;
}

interface Written {
  readonly schema: Schema;
  readonly value: Value;
  readonly config: Tree;
}

/** Why the backend cannot honour a value; undefined for the default, which asks for nothing. */
function refuse(path: string, { schema, value, config }: Written): string | undefined {
  if (statusOf(path, schema.backend) !== "refused") return undefined;
  const usual = schema.fields.get(path)?.default;
  const resolved = hasInterpolation(usual) ? interpolator(config, {}).resolve(usual as Value, path) : usual;
  if (equalValues(resolved, value)) return undefined;
  return `Cannot set ${path}=${showSetting(path, value)} on the ${schema.backend} backend: ${reasonOn(path, schema.backend)}`;
}
