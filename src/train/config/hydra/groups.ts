/** The packaged files and the groups among them: which layers a configuration starts from. */

import { nearest } from "../../../leaves/nearest.ts";
import { BACKENDS } from "../fields/backend_fields.ts";
import { MODEL_ENGINES, VERL_ENGINES, VERL_VERSIONS, verlFiles } from "../fields/verl_tree.ts";
import type { Problem } from "../problem.ts";
import {
  type ConfigLayer,
  LEVEL,
  type Level,
  mergeTree,
  type Origins,
  originInFile,
  readLayer,
} from "../yaml/layer.ts";
import type { Tree } from "../yaml/tree.ts";

/** Algorithms by their papers: `config/preset/NAME.yaml`. */
export const PRESETS: readonly string[] = [
  ...["grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "ppo"],
  ...["rloo", "remax", "reinforce_plus_plus", "opo", "gpg"],
];

export const GROUPS: Readonly<Record<string, readonly string[]>> = {
  rllm: ["base"],
  "rllm/backend": BACKENDS,
  verl: VERL_VERSIONS,
  model_engine: MODEL_ENGINES,
  preset: PRESETS,
};

/** A choice of the user, with the words that made it. */
export interface GroupChoice {
  readonly choice: string;
  readonly by: string;
  readonly file?: string;
  readonly line?: number | undefined;
  /** A backend that a plug-in registered: its settings are those of `choice`. */
  readonly own?: string;
}

/** The problem with choosing `choice` in `group`; undefined when there is none. */
export function checkChoice(group: string, { choice, file, line }: GroupChoice): Problem | undefined {
  const allowed = GROUPS[group];
  const problem = (message: string): Problem => ({ severity: "error", message, path: group, file, line });
  if (!allowed) {
    if (group.startsWith("hydra/"))
      return problem(`Cannot choose ${group}=${choice}: Hydra is not used here. Remove it.`);
    const close = nearest(group, Object.keys(GROUPS));
    const advice = close ? `Did you mean ${close}?` : `Groups: ${Object.keys(GROUPS).join(", ")}.`;
    return problem(`Cannot choose ${group}=${choice}: there is no such group. ${advice}`);
  }
  if (allowed.includes(choice)) return undefined;
  const plugIn = group === "rllm/backend" ? ", or one that a module given with --import registers" : "";
  const close = nearest(choice, allowed);
  const meant = close ? ` Did you mean ${group}=${close}?` : "";
  return problem(`Cannot choose ${group}=${choice}: the choices are ${allowed.join(", ")}${plugIn}.${meant}`);
}

/** Refuses every choice: the settings of commands that train on rows have no groups. */
export function refuseAllChoices(choices: ReadonlyMap<string, GroupChoice>, command: string): Problem[] {
  return Array.from(choices, ([group, chosen]) =>
    badChoice(group, chosen, `grpu ${command} trains on this machine, and its settings have no groups. Remove it`),
  );
}

/** Refuses choices among verl's trees on another backend: they would have no effect. */
export function refuseTreeChoices(choices: ReadonlyMap<string, GroupChoice>, backend: string): Problem[] {
  return ["verl", "model_engine"].flatMap((group) => {
    const chosen = choices.get(group);
    const advice = "Remove it, or choose rllm/backend=verl";
    return chosen ? [badChoice(group, chosen, `the ${backend} backend has no verl tree. ${advice}`)] : [];
  });
}

function checkEngine(chosen: GroupChoice | undefined, version: string): Problem[] {
  const engines = VERL_ENGINES[version] ?? [];
  if (chosen === undefined || engines.includes(chosen.choice)) return [];
  return [badChoice("model_engine", chosen, `verl ${version} has ${engines.join(", ")}`)];
}

function badChoice(group: string, { choice, file, line }: GroupChoice, why: string): Problem {
  return { severity: "error", message: `Cannot choose ${group}=${choice}: ${why}.`, path: group, file, line };
}

export interface PackagedRequest {
  /** Text of a packaged file; undefined where there is none. */
  readonly readConfig: (name: string) => string | undefined;
  /** `unified.yaml`, or that of a command that trains on rows. */
  readonly file: string;
  readonly choices: ReadonlyMap<string, GroupChoice>;
  readonly tree: Tree;
  readonly origins: Origins;
  /** Receives a copy of verl's own tree, for its types. */
  readonly native: Tree;
}

/** Lays a file, and everything that its defaults lists name, over a tree. */
export function layPackaged(request: PackagedRequest): Problem[] {
  const problems: Problem[] = [];
  const load = (name: string, mount?: string): void => {
    const text = request.readConfig(name);
    if (text === undefined) {
      problems.push({
        severity: "error",
        message: `Cannot read config/${name}: the file is missing from the package. Install grpu again.`,
      });
      return;
    }
    const layer = readLayer(text, { file: `config/${name}`, level: levelOf(name), mount });
    problems.push(...layer.problems);
    const hasSelf = layer.defaults.some((entry) => entry.kind === "self");
    for (const entry of layer.defaults) {
      if (entry.kind === "self") lay(layer);
      else if (entry.kind === "file") load(`${entry.name}.yaml`);
      else {
        const choice = request.choices.get(entry.group)?.choice ?? entry.choice;
        if (entry.group === "verl") loadVerl(choice);
        else load(`${entry.group}/${choice}.yaml`, entry.group.replaceAll("/", "."));
      }
    }
    if (!hasSelf) lay(layer);
  };
  const loadVerl = (version: string): void => {
    const engine = request.choices.get("model_engine");
    const wrong = checkEngine(engine, version);
    problems.push(...wrong);
    const isRight = engine !== undefined && wrong.length === 0;
    for (const name of verlFiles(version, isRight ? engine.choice : undefined)) load(name);
  };
  const lay = (layer: ConfigLayer): void => {
    mergeTree(request.tree, layer.tree, request.origins, (path) => originInFile(layer, path));
    if (layer.level === LEVEL.native)
      mergeTree(request.native, layer.tree, new Map(), (path) => originInFile(layer, path));
  };
  load(request.file);
  return problems;
}

function levelOf(name: string): Level {
  if (name.startsWith("verl/")) return LEVEL.native;
  return name.startsWith("rllm/backend/") || name === "unified.yaml" ? LEVEL.backend : LEVEL.base;
}
