/** The user's files and overrides, read but not yet checked. */
import type { ComposeOptions } from "./compose_options.ts";
import { type Override, parseOverride } from "./hydra/override.ts";
import type { Problem } from "./problem.ts";
import { maskOverride } from "./secret.ts";
import { type Layer, LEVEL, readLayer } from "./yaml/layer.ts";

/** The layers of all files, each with the files that its defaults list names, in the order of precedence. */
export function readUserLayers({ files = [], readFile }: ComposeOptions, problems: Problem[]): Layer[] {
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
