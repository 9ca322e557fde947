import { ConfigError } from "../../leaves/errors.ts";
import { splitArguments } from "../../train/run/arguments.ts";
import type { Command, Input, Io } from "../command.ts";
import { EXIT_CONFIG } from "../process/exit.ts";
import { CONFIG, configFiles, optionList, printProblems } from "./config_sources.ts";

export const explainCommand: Command = {
  path: "config explain",
  summary: "print a setting's type, default, meaning, other names and support, or list a section",
  args: "<KEY> [config.yaml] [key=value ...]",
  options: [CONFIG, { flag: "--json", describe: "print JSON" }],
  examples: [
    "grpu config explain rllm.rollout.n",
    "grpu config explain rllm.rollout.n run.yaml rllm/backend=tinker",
    "grpu config explain buffer.batch_size",
  ],
  notes: "With files or overrides, also prints the value in a run with them, and its source.",
  run: explain,
};

async function explain({ args, options }: Input, io: Io): Promise<number> {
  const { explainSetting, formatExplanation, formatSection, nearestSetting } = await import(
    "../../cluster/convert/inspect/explain.ts"
  );
  const { readConfig } = configFiles();
  const { files, overrides } = splitArguments(args);
  const key = files.shift();
  if (key === undefined)
    throw new ConfigError("Cannot explain: no setting is given. Name one, for instance rllm.rollout.n.");
  const about = explainSetting(key, readConfig);
  if (about === undefined && formatSection(key) !== "") {
    io.out(formatSection(key));
    return 0;
  }
  if (about === undefined) {
    const close = nearestSetting(key, readConfig);
    throw new ConfigError(
      `Cannot explain ${key}: there is no such setting${close ? ` (nearest: ${close})` : ""}. List them with: grpu config show`,
    );
  }
  const layers = { files: [...optionList(options.config), ...files], overrides };
  const value = layers.files.length + overrides.length > 0 ? await valueIn(key, layers, io) : undefined;
  if (value === "refused") return EXIT_CONFIG;
  const explanation = value === undefined ? about : { ...about, value };
  io.out(options.json === true ? `${JSON.stringify(explanation, null, 2)}\n` : formatExplanation(explanation));
  return 0;
}

/** The value of a setting in a run with these files and overrides, and where it comes from. */
async function valueIn(
  key: string,
  layers: { readonly files: readonly string[]; readonly overrides: readonly string[] },
  io: Io,
): Promise<import("../../cluster/convert/inspect/explain.ts").Explanation["value"] | "refused"> {
  const [{ tryCompose }, { valueInRun }] = await Promise.all([
    import("../../train/config/compose.ts"),
    import("../../cluster/convert/inspect/explain.ts"),
  ]);
  const attempt = tryCompose({ ...configFiles(), ...layers, env: io.env, allowMissing: true });
  if (await printProblems(attempt.problems, attempt.warnings, io)) return "refused";
  return valueInRun(key, attempt);
}
