/** `grpu push` and `grpu pull`: models and adapters on the Hugging Face Hub, or a server with its interface. */
import { ConfigError } from "../../leaves/errors.ts";
import type { Command, Input, Io } from "../command.ts";
import { isRepoName } from "../hub/repo_name.ts";
import { BASE } from "./model_options.ts";

const REVISION = "--revision";
const JSON_OUTPUT = { flag: "--json", describe: "print the commit and its files as one JSON object" };
const ENVIRONMENT =
  "HF_ENDPOINT names another server than https://huggingface.co, and HF_TOKEN is the token. Needs the package @huggingface/hub.";

const pushCommand: Command = {
  path: "push",
  summary: "upload a run's model or adapter, or a folder, to the Hugging Face Hub",
  args: "<DIR>",
  options: [
    { flag: "--to", value: "OWNER/NAME", describe: "the repository; made where there is none", required: true },
    { flag: REVISION, value: "BRANCH", describe: "the branch; made where there is none", default: "main" },
    { flag: "--private", describe: "make a new repository private" },
    { flag: "--merge", describe: "add an adapter to its base's weights, as grpu export does" },
    BASE,
    JSON_OUTPUT,
  ],
  examples: [
    "grpu push checkpoints/grpu/gsm8k --to me/gsm8k-adapter --private",
    "grpu push checkpoints/grpu/gsm8k --to me/gsm8k --merge",
    "grpu push ./exported --to me/gsm8k --revision step-100",
  ],
  notes: `DIR is a run (its latest step) or a checkpoint of one, of which goes what grpu export writes, or a folder, which goes as it is, without hidden files. Where there is no README.md, a model card is added. ${ENVIRONMENT}`,
  run: pushModel,
};

const pullCommand: Command = {
  path: "pull",
  writesForOthers: true,
  summary: "download a repository of the Hugging Face Hub",
  args: "<OWNER/NAME>",
  options: [
    { flag: "--out", value: "DIR", describe: "the folder to write; empty, or not there yet", required: true },
    { flag: REVISION, value: "REV", describe: "a branch, a tag or a commit", default: "main" },
    { flag: "--include", value: "GLOB", describe: "only files that match; repeatable", repeat: true },
    { flag: "--exclude", value: "GLOB", describe: "no files that match; repeatable", repeat: true },
    JSON_OUTPUT,
  ],
  examples: [
    "grpu pull Qwen/Qwen2.5-0.5B-Instruct --out ./Qwen2.5-0.5B-Instruct",
    "grpu pull HuggingFaceTB/SmolLM2-135M-Instruct --out ./SmolLM2 --exclude 'onnx/*' --exclude 'runs/*'",
  ],
  notes: `Files go to DIR.partial, are compared with the repository's digests, and get the name DIR when all are whole. The same command continues an interrupted download. In globs, * crosses folders. ${ENVIRONMENT}`,
  run: pullModel,
};

export const hubCommands: readonly Command[] = [pushCommand, pullCommand];

async function pushModel({ args, options }: Input, io: Io): Promise<void> {
  const repo = repoName(options.to as string | undefined, "push");
  if (args.length !== 1)
    throw new ConfigError(`Cannot push: ${args.length} folders are named. Name one.`, { kind: "usage" });
  const { openHub } = await import("../hub/access.ts");
  const { modelCard } = await import("../hub/card.ts");
  const { push } = await import("../hub/push.ts");
  const { pushedFolder } = await import("../hub/pushed_folder.ts");
  const hub = await openHub(io, { needsToken: true });
  const base = options.base as string | undefined;
  const folder = await pushedFolder(args[0]!, { merge: options.merge === true, base }, io);
  try {
    const { sha, url, files } = await push(hub, folder.dir, {
      repo,
      branch: String(options.revision),
      isPrivate: options.private === true,
      card: modelCard(folder.dir, { name: repo.split("/")[1]!, run: folder.run }),
      useXet: io.env.HF_HUB_DISABLE_XET !== "1",
      notify: io.err,
    });
    io.out(options.json ? `${JSON.stringify({ repo, sha, url, files })}\n` : `${url}\n`);
  } finally {
    await folder.remove();
  }
}

async function pullModel({ args, options }: Input, io: Io): Promise<void> {
  const repo = repoName(args.length === 1 ? args[0] : args.join(" "), "pull");
  const { openHub } = await import("../hub/access.ts");
  const { pull } = await import("../hub/pull.ts");
  const out = String(options.out);
  const { sha, files } = await pull(await openHub(io, { needsToken: false }), {
    repo,
    out,
    revision: String(options.revision),
    include: (options.include as readonly string[] | undefined) ?? [],
    exclude: (options.exclude as readonly string[] | undefined) ?? [],
    screen: io,
  });
  io.out(options.json ? `${JSON.stringify({ repo, sha, out, files })}\n` : `${out}\n`);
}

/** @throws {ConfigError} for what is no `owner/name`. */
function repoName(text = "", act: string): string {
  if (isRepoName(text)) return text;
  throw new ConfigError(`Cannot ${act}: a repository is named owner/name (${text}). Correct the name.`, {
    kind: "usage",
  });
}
