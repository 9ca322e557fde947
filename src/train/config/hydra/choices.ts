/** Packaged files that the user chose: by a defaults list, by a value, or on the command line. */

import type { Problem } from "../problem.ts";
import type { ConfigLayer } from "../yaml/layer.ts";
import { getAt, hasInterpolation } from "../yaml/tree.ts";
import { checkChoice, type GroupChoice } from "./groups.ts";
import type { Override } from "./override.ts";

const BACKEND = "rllm/backend";
const ENGINE = "model_engine";

/** A plug-in's backend has the settings of this one. */
const BASE_OF_OWN = "local";

type Choose = (group: string, choice: GroupChoice) => void;

/**
 * Choices by group: overrides win over files; a plain `rllm.backend` value counts as one.
 * @param options.backends names of backends that plug-ins registered
 */
export function collectChoices(
  layers: readonly ConfigLayer[],
  overrides: readonly Override[],
  { problems, backends }: { problems: Problem[]; backends?: readonly string[] | undefined },
): Map<string, GroupChoice> {
  const choices = new Map<string, GroupChoice>();
  const choose: Choose = (group, choice) => {
    // verl's name for its tree, in files written for Hydra.
    if (group === "ppo_trainer") return;
    if (group === BACKEND && backends?.includes(choice.choice)) {
      choices.set(group, { ...choice, choice: BASE_OF_OWN, own: choice.choice });
      return;
    }
    const problem = checkChoice(group, choice);
    if (problem) problems.push(problem);
    else choices.set(group, choice);
  };
  for (const layer of layers) chooseInFile(layer, choose, problems);
  chooseOnCommandLine(overrides, choose, problems);
  return choices;
}

function chooseInFile(layer: ConfigLayer, choose: Choose, problems: Problem[]): void {
  const { file } = layer;
  const at = (path: string) => ({ by: file, file, line: layer.lines.get(path) });
  const listed = layer.defaults.filter((entry) => entry.kind === "group");
  const isMegatron = layer.defaults.some(
    (entry) => entry.kind === "file" && /^\/?ppo_megatron_trainer$/.test(entry.name),
  );
  if (isMegatron) choose(ENGINE, { choice: "megatron", ...at("defaults") });
  const engine = getAt(layer.tree, ENGINE);
  if (typeof engine === "string") choose(ENGINE, { choice: engine, ...at(ENGINE) });
  for (const { group, choice } of listed) choose(group, { choice, ...at("defaults") });
  const value = getAt(layer.tree, "rllm.backend");
  const chosen = listed.find(({ group }) => group === BACKEND)?.choice;
  if (typeof value !== "string" || hasInterpolation(value) || value === chosen) return;
  if (chosen === undefined) choose(BACKEND, { choice: value, ...at("rllm.backend") });
  else {
    const message = `Cannot choose the backend: defaults has rllm/backend=${chosen}, the file has rllm.backend=${value}. Keep one.`;
    problems.push({ severity: "error", message, ...at("rllm.backend") });
  }
}

function chooseOnCommandLine(overrides: readonly Override[], choose: Choose, problems: Problem[]): void {
  let typed: string | undefined;
  for (const { kind, key, value, text } of overrides) {
    const isBackendValue = key === "rllm.backend" && kind !== "delete";
    if (kind !== "group" && !isBackendValue) continue;
    const group = isBackendValue ? BACKEND : key;
    const choice = String(value);
    if (group === BACKEND) {
      if (typed !== undefined && typed !== choice) {
        const message = `Cannot choose the backend: there are two choices (${typed}, ${choice}). Keep one.`;
        problems.push({ severity: "error", message });
      }
      typed = choice;
    }
    choose(group, { choice, by: `override ${text}` });
  }
}
