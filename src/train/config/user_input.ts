/** The user's files and overrides, read but not yet checked. */
import type { ComposeOptions } from "./compose_options.ts";
import { type Override, parseOverride } from "./hydra/override.ts";
import type { Problem } from "./problem.ts";
import { maskOverride } from "./secret.ts";
import { type ConfigLayer, LEVEL, readLayer } from "./yaml/layer.ts";

/**
 * The layers of all files, each with the files and presets that its defaults list names, in the order of precedence. Presets of the
 * command line lie above the files; `preset=NAME` without a plus replaces a file's in its place.
 */
export function readUserLayers(
  options: ComposeOptions,
  overrides: readonly Override[],
  problems: Problem[],
): ConfigLayer[] {
  const { base = "unified", files = [], readFile, readConfig } = options;
  const layers: ConfigLayer[] = [];
  const typed = overrides.filter(({ kind, key }) => kind === "group" && key === "preset");
  const instead = typed.findLast(({ text }) => !text.startsWith("+"));
  let isReplaced = false;
  const loadPreset = (name: string) => {
    // The choice itself is refused there.
    if (base !== "unified") return;
    const file = `preset/${name}.yaml`;
    const text = readConfig(file);
    // An unknown name is a problem of the choice.
    if (text !== undefined) layers.push(readLayer(text, { file: `config/${file}`, level: LEVEL.file }));
  };
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
      } else if (entry.kind === "group" && entry.group === "preset") {
        loadPreset(String(instead?.value ?? entry.choice));
        isReplaced = true;
      }
    }
    if (!isPlaced) layers.push(layer);
  };
  for (const file of files) load(file, []);
  for (const preset of typed) if (preset !== instead || !isReplaced) loadPreset(String(preset.value));
  return layers;
}

/** Names in a defaults list that mean files of the package, which are always loaded. */
const PACKAGED_NAMES = /^\/?(unified|ppo_(megatron_)?trainer|base|dpo|reward-model|sft|sft_trainer(_engine)?)$/;

function siblingOf(file: string, name: string): string {
  const folder = file.includes("/") ? file.slice(0, file.lastIndexOf("/") + 1) : "";
  const withEnding = /\.ya?ml$/.test(name) ? name : `${name}.yaml`;
  return withEnding.startsWith("/") ? withEnding : folder + withEnding;
}

export function readOverrides(texts: readonly string[], problems: Problem[]): Override[] {
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
