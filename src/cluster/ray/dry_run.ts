/** A job as text, for people who look at it before it runs or hand it to Ray themselves. */
import { maskText } from "../../train/config/mask.ts";
import { maskTree } from "../../train/config/secret.ts";
import { isTree, type Tree, type YamlValue } from "../../train/config/yaml/tree.ts";
import type { JobSpec } from "./contract.ts";
import { quoteWord } from "./shell_word.ts";
import type { JobPlan } from "./trainer.ts";

const SECRET = /TOKEN|KEY|SECRET|PASSWORD/i;
const HIDDEN = "***";

/** Files of the folder that a dry run writes: the job's working directory and, above it, what `ray job submit` takes. */
export function dryRunFiles(job: JobSpec): Map<string, Uint8Array> {
  const encoder = new TextEncoder();
  const env = maskedEnv(job);
  const { pip, py_executable } = job;
  const runtime = { env_vars: env, ...(pip && { pip }), ...(py_executable && { py_executable }) };
  const files = new Map<string, Uint8Array>();
  for (const [name, bytes] of job.files) files.set(`working_dir/${name}`, bytes);
  files.set("runtime_env.json", encoder.encode(`${JSON.stringify(runtime, null, 2)}\n`));
  files.set("submit.sh", encoder.encode(submitScript(job)));
  return files;
}

/** The job for a terminal: command with what belongs to it, files with their sizes, environment without secrets. */
export function dryRunText({ job, command, facts }: JobPlan): string {
  const lines = [
    `job ${job.submission_id}`,
    ...facts,
    "command:",
    ...command.map((line, i) => `${i === 0 ? "  " : "    "}${line}`),
    "files:",
    ...[...job.files].map(([name, bytes]) => `  ${name}  ${bytes.length} bytes`),
    "environment:",
    ...Object.entries(maskedEnv(job)).map(([name, value]) => `  ${name}=${maskText(value)}`),
  ];
  if (job.pip) lines.push("pip:", ...job.pip.map((requirement) => `  ${requirement}`));
  return `${lines.join("\n")}\n`;
}

function maskedEnv({ env }: JobSpec): Record<string, string> {
  return Object.fromEntries(Object.entries(env).map(([name, value]) => [name, SECRET.test(name) ? HIDDEN : value]));
}

/** A configuration as people may see it: without secrets, among them those of its sections of environment variables. */
export function shownTree(tree: Tree): Tree {
  return withoutSecretVariables(maskTree(tree), false);
}

function withoutSecretVariables(tree: Tree, isEnv: boolean): Tree {
  const shown = (name: string, value: YamlValue): YamlValue => {
    if (isTree(value)) return withoutSecretVariables(value, isEnv || name === "env_vars");
    return isEnv && SECRET.test(name) ? HIDDEN : value;
  };
  return Object.fromEntries(Object.entries(tree).map(([name, value]) => [name, shown(name, value)]));
}

function submitScript({ submission_id, entrypoint, env, resources = {} }: JobSpec): string {
  const reserved = Object.entries(resources).map(
    ([name, amount]) => `--entrypoint-${name.replaceAll("_", "-")} ${amount} `,
  );
  const secrets = Object.keys(env).filter((name) => SECRET.test(name));
  return [
    "#!/bin/sh",
    `# Submits the run to the Ray cluster at RAY_ADDRESS. Write ${secrets.join(", ")} into runtime_env.json first.`,
    'cd "$(dirname "$0")" || exit 1',
    `exec ray job submit --submission-id ${quoteWord(submission_id)} --working-dir working_dir --runtime-env-json "$(cat runtime_env.json)" ${reserved.join("")}-- sh -c ${quoteWord(entrypoint)}`,
    "",
  ].join("\n");
}
