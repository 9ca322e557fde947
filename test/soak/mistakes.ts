/** Random mistakes of people who use the command line: what they type, and in what state their files are. */
import { chmodSync, cpSync, mkdirSync, readFileSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { mulberry32 } from "../../src/leaves/random.ts";

export interface Mistake {
  /** For messages. */
  readonly name: string;
  /** Command lines, started together; DIR is the mistake's folder. */
  readonly lines: readonly (readonly string[])[];
  /** Files that it needs, by name. */
  readonly files?: Readonly<Record<string, string>>;
  /** Harms a file of the folder. */
  readonly harm?: (dir: string) => void;
  /** KiB that DIR/small holds, where the run is written to. */
  readonly disk?: number;
  /** Sent to the first process after so many milliseconds. */
  readonly signals?: readonly { readonly signal: NodeJS.Signals; readonly afterMs: number }[];
  /** Lines that may succeed: the mistake may be none after all. */
  readonly mayPass?: boolean;
  /** How many of the lines succeed, where it is known. */
  readonly passing?: number;
}

/** A run of a second on the reference device, into DIR/run, where a finished one is. */
export const SMALL = [
  "examples/arithmetic/run.yaml",
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
  "data.val_files=DIR/val.jsonl",
  "warmup.steps=2",
  "warmup.batch_size=4",
  "rllm.data.train_batch_size=4",
  "rllm.rollout.n=2",
  "rllm.trainer.total_batches=2",
  "rllm.trainer.save_freq=1",
  "rllm.trainer.test_freq=0",
  "rllm.trainer.val_before_train=false",
  "training.default_local_dir=DIR/run",
  "--device",
  "cpu",
];

export const VAL = '{"prompt":"11+2=","answer":"13"}\n{"prompt":"20+3=","answer":"23"}\n';

const train = (...more: string[]) => ["train", ...SMALL, ...more];
const evaluate = (...more: string[]) => [
  "eval",
  "--no-cache",
  ...SMALL.filter((word) => !word.startsWith("training.default_local_dir")),
  ...more,
];

type Random = () => number;
type Family = (random: Random) => Mistake;

function pick<T>(random: Random, items: readonly T[]): T {
  return items[Math.floor(random() * items.length)]!;
}

const KEYS = [
  "rllm.rollout.n",
  "rllm.trainer.total_batches",
  "training.learning_rate",
  "rllm.algorithm.adv_estimator",
  "task.reward",
  "data.train_files",
  "rllm.data.max_prompt_length",
  "training.resume_mode",
  "warmup.steps",
  "model.init.layers",
] as const;

const wrongKey: Family = (random) => {
  const key = pick(random, KEYS);
  const at = 1 + Math.floor(random() * (key.length - 2));
  const change = pick(random, [key.slice(0, at) + key.slice(at + 1), `${key}x`, `${key}.more`, `x.${key}`]);
  const command = pick(random, [train, evaluate]);
  return { name: `the key ${change}`, lines: [command(`${change}=1`)] };
};

const wrongValue: Family = (random) => {
  const key = pick(random, [...KEYS.filter((each) => !/files|reward/.test(each)), "rllm.rollout.train.top_p"]);
  const value = pick(random, ["none-such", "[1, 2]", "{a: 1}", "'1e999x'", "[", "-7.5", "a=b", "'"]);
  const command = pick(random, [train, evaluate]);
  return { name: `${key}=${value}`, lines: [command(`${key}=${value}`)] };
};

const missing: Family = (random) => {
  const nowhere = pick(random, ["DIR/nowhere", "DIR/run/nowhere.jsonl", "/nowhere/at/all", "DIR/val.jsonl/x", ""]);
  const line = pick(random, [
    train(`data.train_files=${nowhere || "DIR/nowhere.parquet"}`),
    train(`model.name=${nowhere || "Qwen/Qwen3-0.6B"}`),
    train("--import", nowhere || "DIR/nowhere.ts"),
    ["train", nowhere || "DIR/nowhere.yaml"],
    train("training.resume_mode=resume_path", `training.resume_from_path=${nowhere || "DIR/nowhere"}`),
    evaluate("--checkpoint", nowhere || "DIR/nowhere"),
    ["report", nowhere || "DIR/nowhere"],
    ["view", nowhere || "DIR/nowhere", "--port", "0"],
    ["sample", "--model", nowhere || "DIR/nowhere", "--prompt", "1", "--device", "cpu"],
    ["model", "score", "--model", "DIR/run/global_step_2", "--input", nowhere || "DIR/nowhere.jsonl"],
    ["serve", "tinker", "--model", nowhere || "DIR/nowhere", "--device", "cpu", "--port", "0"],
    ["config", "diff", nowhere || "DIR/nowhere.yaml", "examples/arithmetic/run.yaml"],
    ["compute", "advantages", "--input", nowhere || "DIR/x.jsonl", "--estimator", "grpo", "--device", "cpu"],
    ["metrics", "convert", "--from", "verl", "--to", "trinity", nowhere || "DIR/nowhere.jsonl"],
  ]);
  return { name: `no file: ${line.join(" ")}`, lines: [line] };
};

/** Files of a finished run, and commands that read them. */
const READERS: readonly (readonly [string, readonly string[]])[] = [
  ["run/global_step_2/model.safetensors", ["sample", "--model", "DIR/run/global_step_2", "--prompt", "11+2="]],
  ["run/global_step_2/config.json", ["sample", "--model", "DIR/run/global_step_2", "--prompt", "11+2="]],
  ["run/global_step_2/tokenizer.json", ["sample", "--model", "DIR/run/global_step_2", "--prompt", "11+2="]],
  ["run/global_step_2/tokenizer_config.json", ["sample", "--model", "DIR/run/global_step_2", "--prompt", "1"]],
  ["run/global_step_2/model.safetensors", evaluate("--checkpoint", "DIR/run/global_step_2")],
  ["run/global_step_2/loop.json", train("training.resume_mode=auto", "rllm.trainer.total_batches=3")],
  ["run/global_step_2/model.safetensors", train("training.resume_mode=auto", "rllm.trainer.total_batches=3")],
  ["run/metrics.jsonl", ["report", "DIR/run", "--output", "DIR/out.html"]],
  ["run/config.yaml", ["report", "DIR/run", "--output", "DIR/out.html"]],
  ["run/run.json", ["report", "DIR/run", "--output", "DIR/out.html"]],
  ["val.jsonl", evaluate()],
  ["val.jsonl", train()],
];

const damaged: Family = (random) => {
  const [file, line] = pick(random, READERS);
  const kind = pick(random, ["cut", "flipped", "empty", "noise", "folder", "loop", "unreadable"] as const);
  const where = random();
  const harm = (dir: string) => {
    const path = join(dir, file);
    const bytes = readFileSync(path);
    const at = Math.floor(where * bytes.length);
    if (kind === "cut") truncateSync(path, at);
    else if (kind === "empty") truncateSync(path, 0);
    else if (kind === "unreadable") chmodSync(path, 0);
    else if (kind === "noise") writeFileSync(path, Buffer.from(Array.from(bytes, () => Math.floor(random() * 256))));
    else if (kind === "flipped") {
      bytes[at]! ^= 0xff;
      writeFileSync(path, bytes);
    } else replace(path, kind);
  };
  const flags = line[0] === "sample" ? ["--max-tokens", "2", "--device", "cpu"] : [];
  return { name: `${kind}: ${file} for ${line[0]}`, lines: [[...line, ...flags]], harm, mayPass: true };
};

function replace(path: string, kind: "folder" | "loop"): void {
  cpSync(path, `${path}.was`);
  truncateSync(path, 0);
  const { rmSync } = process.getBuiltinModule("node:fs");
  rmSync(path);
  if (kind === "folder") mkdirSync(path);
  else symlinkSync(path, path);
}

const wrongRows: Family = (random) => {
  const text = pick(random, [
    "",
    "[]\n",
    "{\n",
    '{"question":"1+1="}\n',
    '{"prompt":7}\n',
    '{"prompt":""}\n',
    "null\n",
    '{"prompt":"11+2=","answer":"13"}\n{"prompt":\n',
    '{"prompt":"no such letters","answer":"13"}\n',
    `{"prompt":"${"1".repeat(50)}","answer":"1"}\n`,
    '{"prompt":[{"role":"user"}]}\n',
  ]);
  const name = pick(random, ["rows.jsonl", "rows.parquet"]);
  const line = train(`data.train_files=DIR/${name}`, "rllm.data.train_batch_size=1");
  return { name: `rows ${JSON.stringify(text)} as ${name}`, lines: [line], files: { [name]: text } };
};

const unwritable: Family = (random) => {
  const place = pick(random, ["/proc/grpu", "/dev/null/run", "DIR/val.jsonl/run", "/dev/full", "/sys/grpu"]);
  const line = pick(random, [
    train(`training.default_local_dir=${place}`),
    ["report", "DIR/run", "--output", place],
    ["config", "convert", "--from", "rllm", "--to", "verl", "examples/gsm8k/run.yaml", "--out", place],
    ["serve", "tinker", "--model", "DIR/run/global_step_2", "--device", "cpu", "--port", "0", "--checkpoints", place],
  ]);
  return { name: `cannot write: ${line.join(" ")}`, lines: [line] };
};

const REWARDS: Readonly<Record<string, string>> = {
  throws: '() => { throw new TypeError("x is undefined"); }',
  "throws a text": '() => { throw "no"; }',
  "is NaN": "() => Number.NaN",
  "is infinite": "() => 1 / 0",
  "is a text": '() => "1"',
  "is nothing": "() => undefined",
  "is an object without a reward": "() => ({ score: 1 })",
  rejects: "() => Promise.reject(new Error('away'))",
  "never ends": "() => { for (;;); }",
  "never answers": "() => new Promise(() => {})",
  "leaves a promise": "() => { void Promise.reject(new Error('lost')); return 1; }",
  "leaves a timer that throws": "() => { setTimeout(() => { throw new Error('late'); }); return 1; }",
};

const badReward: Family = (random) => {
  const kind = pick(random, Object.keys(REWARDS));
  const code = `import { registerReward } from "grpu";\nregisterReward("bad", ${REWARDS[kind]});\n`;
  const hangs = kind.startsWith("never");
  const limits = [
    ...(hangs ? ["task.judge_timeout=0.5"] : []),
    `rllm.workflow.raise_on_error=${!hangs && random() < 0.5}`,
    `rllm.workflow.retry_limit=${hangs ? 1 : 2}`,
    ...(hangs ? ["rllm.data.train_batch_size=1"] : []),
  ];
  const line = train("--import", "DIR/bad.ts", "task.reward=bad", ...limits);
  return { name: `a reward that ${kind}, ${limits.join(" ")}`, lines: [line], files: { "bad.ts": code } };
};

const badModule: Family = (random) => {
  const code = pick(random, [
    "const = 1;",
    'throw new Error("at once");',
    'import "./nowhere.ts";',
    'import { noSuch } from "grpu"; noSuch();',
    'import { registerReward } from "grpu"; registerReward("other", () => 1);',
    "await new Promise(() => {});",
  ]);
  const line = train("--import", "DIR/bad.ts", "task.reward=bad");
  return { name: `the module ${code}`, lines: [line], files: { "bad.ts": code } };
};

const wrongLine: Family = (random) => {
  const line = pick(random, [
    ["trian"],
    ["train", "--devise", "cpu"],
    ["train", "--device", "gpu"],
    ["report"],
    ["sample", "--prompt", "x"],
    ["sample", "--model", "DIR/run/global_step_2", "--prompt", "1", "--max-tokens", "0"],
    ["sample", "--model", "DIR/run/global_step_2", "--prompt", "1", "--temperature", "hot"],
    ["sample", "--model", "DIR/run/global_step_2", "--prompt", "1".repeat(200), "--device", "cpu"],
    ["sample", "--model", "DIR/run/global_step_2", "--prompt", "letters", "--device", "cpu"],
    ["sample", "--model", "DIR/run/global_step_2", "--prompt", "1", "--chat", "--device", "cpu"],
    ["view", "DIR/run", "--port", "70000"],
    ["model", "generate", "--model", "DIR/run/global_step_2", "--tokens", "1,999999", "--device", "cpu"],
    ["model", "generate", "--model", "DIR/run/global_step_2", "--tokens", "", "--device", "cpu"],
    ["serve", "tinker", "--model", "DIR/run/global_step_2", "--host", "0.0.0.0"],
    ["eval", "examples/arithmetic/run.yaml", "--n", "none"],
    ["config", "explain", "rllm.rolout.n"],
    ["config", "convert", "--from", "verl", "--to", "trinity", "DIR/val.jsonl"],
    train("rllm.trainer.total_epochs=1", "rllm.data.train_batch_size=100000", "rllm.trainer.total_batches=-1"),
    train("rllm.trainer.logger=[console, nothing]"),
    train("rllm/backend=nothing"),
  ]);
  return { name: `the line ${line.join(" ")}`.slice(0, 200), lines: [line] };
};

const interrupted: Family = (random) => {
  const signal = pick(random, ["SIGINT", "SIGTERM", "SIGKILL"] as const);
  const times = [300 + random() * 3000];
  if (random() < 0.3) times.push(times[0]! + random() * 500);
  const signals = times.map((afterMs) => ({ signal, afterMs }));
  const line = random() < 0.7 ? train("rllm.trainer.total_batches=6") : evaluate();
  return {
    name: `${signal} at ${times.map(Math.round)} ms of ${line[0]}`,
    lines: [line],
    signals,
    mayPass: true,
  };
};

const fullDisk: Family = (random) => {
  const disk = 4 * Math.ceil(random() * 40);
  const line = train("training.default_local_dir=DIR/small/run", "rllm.trainer.total_batches=4");
  return { name: `a disk of ${disk} KiB`, lines: [line], disk, mayPass: true };
};

const twoAtOnce: Family = () => ({
  name: "two processes in one folder",
  lines: [train(), train()],
  passing: 1,
});

/** Weights: how often each family comes. */
const FAMILIES: readonly (readonly [number, Family])[] = [
  [6, wrongKey],
  [6, wrongValue],
  [8, missing],
  [8, damaged],
  [4, wrongRows],
  [4, unwritable],
  [8, badReward],
  [2, badModule],
  [6, wrongLine],
  [6, interrupted],
  [3, fullDisk],
  [1, twoAtOnce],
];

/** The mistake of that number: always the same one. */
export function mistakeOf(seed: number): Mistake {
  const random = mulberry32(seed * 2654435761);
  for (let i = 0; i < 8; i++) random();
  const drawn = FAMILIES.flatMap(([weight, family]) => Array<Family>(weight).fill(family));
  return pick(random, drawn)(random);
}

/** Puts the files of a mistake into its folder, where a finished run is. */
export function prepare(mistake: Mistake, dir: string): void {
  for (const [name, text] of Object.entries({ "val.jsonl": VAL, ...mistake.files })) {
    mkdirSync(dirname(join(dir, name)), { recursive: true });
    writeFileSync(join(dir, name), text);
  }
  mistake.harm?.(dir);
}
