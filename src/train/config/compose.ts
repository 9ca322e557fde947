/**
 * Composes files and overrides into one resolved configuration in which every value has its origin.
 * Synchronous and independent of the runtime: files and environment are parameters.
 */

import { checkResolved } from "./check_resolved.ts";
import type { ComposeOptions } from "./compose_options.ts";
import { BACKENDS, type BackendName, isClusterBackend } from "./fields/backend_fields.ts";
import { DEFAULT_VERL, otherVerlTree } from "./fields/verl_tree.ts";
import { collectChoices } from "./hydra/choices.ts";
import { type GroupChoice, layPackaged, refuseAllChoices, refuseTreeChoices } from "./hydra/groups.ts";
import { type Env, interpolator } from "./hydra/interpolate.ts";
import { applyOverride, checkUserTree, type Intake } from "./intake.ts";
import { type Problem, throwProblems } from "./problem.ts";
import { type ConfigSchema, rowSchema, schemaOf } from "./schema.ts";
import { draftOf, syncShared } from "./sync/sync.ts";
import { LOCAL_SHARED, TINKER_SHARED } from "./sync/tables.ts";
import { syncVerl } from "./sync/verl.ts";
import { readOverrides, readUserLayers } from "./user_input.ts";
import { LEVEL, mergeTree, type Origins, originInFile, originOf } from "./yaml/layer.ts";
import { getAt, hasInterpolation, leaves, setAt, type Tree } from "./yaml/tree.ts";

export interface Composed {
  /** Every setting, resolved. Read it with `setting(config, "rllm.rollout.n")`. */
  readonly config: Tree;
  readonly origins: Origins;
  readonly warnings: readonly Problem[];
  readonly backend: BackendName;
  /** Name of verl's packaged tree on which the verl and trinity backends stand: `0.9.1`. */
  readonly verlTree: string;
  readonly schema: ConfigSchema;
}

/** A configuration composed as far as possible, with its problems. */
export interface ComposeAttempt extends Composed {
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

/** Composes like `composeConfig`, but returns the problems. */
export function tryCompose(options: ComposeOptions): ComposeAttempt {
  const problems: Problem[] = [];
  const overrides = readOverrides(options.overrides ?? [], problems);
  const layers = readUserLayers(options, overrides, problems);
  const choices = collectChoices(layers, overrides, {
    problems,
    backends: options.registered?.["rllm.backend"],
  });
  const [tree, native, origins]: [Tree, Tree, Origins] = [{}, {}, new Map()];
  const { base = "unified" } = options;
  const file = `${base}.yaml`;
  problems.push(...layPackaged({ readConfig: options.readConfig, file, choices, tree, origins, native }));
  if (base !== "unified") problems.push(...refuseAllChoices(choices, base));
  const chosen = choices.get("rllm/backend")?.choice ?? getAt(tree, "rllm.backend");
  const backend = BACKENDS.find((name) => name === chosen) ?? "local";
  if (!isClusterBackend(backend)) problems.push(...refuseTreeChoices(choices, backend));
  const schema = base === "unified" ? schemaOf(backend, native) : rowSchema(base);
  const verlTree = choices.get("verl")?.choice ?? DEFAULT_VERL;
  if (problems.some(({ path }) => path === "rllm/backend")) {
    // Without its backend a configuration cannot be checked: every setting would look unknown.
    return { config: tree, origins, warnings: [], backend, verlTree, schema, problems };
  }
  const otherTree = otherVerlTree(options.readConfig, choices.get("verl")?.choice);
  const intake: Intake = { schema, registered: options.registered ?? {}, problems, otherTree };
  for (const layer of layers) {
    const accepted = checkUserTree(layer, intake);
    mergeTree(tree, accepted.tree, origins, (path) => originInFile(accepted, path));
  }
  for (const override of overrides) applyOverride(override, { ...intake, tree, origins });
  if (base === "unified") {
    nameChoices(tree, { origins, choices, backend });
    problems.push(...synchronised(tree, { origins, backend, env: options.env ?? {} }));
  }
  const config = resolveTree(tree, { env: options.env ?? {}, origins, problems });
  checkResolved(config, { schema, origins, options, raw: tree, problems });
  const errors = problems.filter(({ severity }) => severity === "error");
  const warnings = problems.filter(({ severity }) => severity === "warning");
  return { config, origins, warnings, backend, verlTree, schema, problems: errors };
}

/** Keeps shared settings equal. @returns warnings */
function synchronised(
  tree: Tree,
  { origins, backend, env }: { origins: Origins; backend: BackendName; env: Env },
): Problem[] {
  const draft = draftOf(tree, origins, env);
  if (isClusterBackend(backend)) syncVerl(draft);
  else syncShared(draft, backend === "tinker" ? TINKER_SHARED : LOCAL_SHARED);
  return inOrderOfLines(draft.warnings);
}

interface Chosen {
  readonly origins: Origins;
  readonly choices: ReadonlyMap<string, GroupChoice>;
  readonly backend: BackendName;
}

/** Writes the chosen backend and engine over the names that a file has for them. */
function nameChoices(tree: Tree, { origins, choices, backend }: Chosen): void {
  const write = (path: string, value: string, by = "default") => {
    setAt(tree, path, value);
    origins.set(path, { level: LEVEL.override, text: by });
  };
  const chosen = choices.get("rllm/backend");
  const name = chosen?.own ?? backend;
  if (getAt(tree, "rllm.backend") !== name) write("rllm.backend", name, chosen?.by);
  const engine = choices.get("model_engine");
  if (engine !== undefined && isClusterBackend(backend)) write("model_engine", engine.choice, engine.by);
}

function inOrderOfLines(problems: readonly Problem[]): Problem[] {
  const fileOf = ({ file = "" }: Problem) => file;
  return problems.toSorted((a, b) => fileOf(a).localeCompare(fileOf(b)) || (a.line ?? 0) - (b.line ?? 0));
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
