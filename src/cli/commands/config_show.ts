import { ConfigError } from "../../leaves/errors.ts";
import { splitArguments } from "../../train/run/arguments.ts";
import type { Command, Input, Io, Option } from "../command.ts";
import { EXIT_CONFIG } from "../process/exit.ts";
import { CONFIG, configFiles, optionList, printProblems } from "./config_sources.ts";

const FORMAT: Option = {
  flag: "--format",
  value: "NAME",
  describe: "how to print",
  choices: ["yaml", "json"],
  default: "yaml",
};

export const showCommand: Command = {
  path: "config show",
  summary: "print the whole configuration, composed and resolved",
  args: "[config.yaml] [key=value ...]",
  options: [
    CONFIG,
    FORMAT,
    { flag: "--sft", describe: "the settings of grpu sft instead of those of a training run" },
    { flag: "--dpo", describe: "the settings of grpu dpo" },
    { flag: "--reward-model", describe: "the settings of grpu reward-model" },
    { flag: "--origin", describe: "add the source of each value as a comment" },
    { flag: "--section", value: "PATH", describe: "only this section or setting" },
    {
      flag: "--allow-unsupported",
      describe: "warn about settings that the backend cannot honour, instead of refusing them",
    },
  ],
  examples: [
    "grpu config show",
    "grpu config show rllm/backend=verl rllm.algorithm.kl_beta=0.01 --origin",
    "grpu config show --config run.yaml --section rllm.algorithm",
    "grpu config show --sft --section optim",
  ],
  notes:
    "Later sources win: defaults, backend, files, overrides. Secrets are masked; mandatory settings without a value show as ???.",
  run: show,
};

async function show({ args, options }: Input, io: Io): Promise<number> {
  const [{ tryCompose }, { showConfig }, { setAt, getAt }] = await Promise.all([
    import("../../train/config/compose.ts"),
    import("../../train/config/show.ts"),
    import("../../train/config/yaml/tree.ts"),
  ]);
  const { files, overrides } = splitArguments(args);
  const named = { sft: options.sft, dpo: options.dpo, "reward-model": options.rewardModel };
  const base = (["sft", "dpo", "reward-model"] as const).find((name) => named[name] === true) ?? "unified";
  const attempt = tryCompose({
    ...configFiles(),
    base,
    files: [...optionList(options.config), ...files],
    overrides,
    env: io.env,
    allowMissing: true,
    allowUnsupported: options.allowUnsupported === true,
  });
  if (await printProblems(attempt.problems, attempt.warnings, io)) return EXIT_CONFIG;
  const section = options.section === undefined ? undefined : String(options.section);
  let config = attempt.config;
  if (section !== undefined) {
    const value = getAt(config, section);
    if (value === undefined)
      throw new ConfigError(
        `Cannot show ${section}: there is no such section or setting. List them with: grpu config show${base === "unified" ? "" : ` --${base}`}`,
      );
    config = {};
    setAt(config, section, value);
  }
  const format = options.format === "json" ? "json" : "yaml";
  io.out(showConfig(config, { format, origins: options.origin === true ? attempt.origins : undefined }));
  return 0;
}
