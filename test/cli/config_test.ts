// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** `grpu config ...` and `grpu metrics convert`, as a person types them. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { Io } from "../../src/cli/command.ts";
import { configCommands } from "../../src/cli/commands/config.ts";
import { metricsCommands } from "../../src/cli/commands/metrics.ts";
import { runProgram } from "../../src/cli/front.ts";
import { readYaml } from "../../src/train/config/yaml/read.ts";
import { splitArguments } from "../../src/train/run/arguments.ts";
import { captured } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const folder = temporaryFolder("config");
const file = (name: string, text: string) => {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
};

async function grpu(args: readonly string[], { stdin = "", env = {} }: { stdin?: string; env?: Io["env"] } = {}) {
  const { io, written } = captured({ env, stdin: async () => stdin });
  const commands = [...configCommands, ...metricsCommands];
  const program = { name: "grpu", version: "0", summary: "", commands, groups: {}, examples: [] };
  const code = await runProgram(program, args, io);
  return { code, out: written.out.replaceAll(folder, "DIR"), err: written.err.replaceAll(folder, "DIR") };
}

describe("config show", () => {
  test("is YAML on standard output alone", async () => {
    const { code, out, err } = await grpu(["config", "show", "rllm.rollout.n=4"]);
    expect([code, err]).toEqual([0, ""]);
    expect(readYaml(out, "out").tree).toMatchObject({ rllm: { rollout: { n: 4 } }, device: "auto" });
    expect(out).toContain('admin_token: "********"');
    expect(out).not.toContain("my-shared-secret");
  });

  test("files, overrides, a section, JSON with origins", async () => {
    const run = file("run.yaml", "rllm:\n  rollout:\n    n: 2\n");
    const { out } = await grpu([
      "config",
      "show",
      run,
      "rllm.rollout.n_val=3",
      "--section",
      "rllm.rollout",
      "--origin",
      "--format",
      "json",
    ]);
    const shown = JSON.parse(out);
    expect(shown["rllm.rollout.n"]).toEqual({ value: 2, origin: "DIR/run.yaml:3" });
    expect(shown["rllm.rollout.n_val"]).toEqual({ value: 3, origin: "override rllm.rollout.n_val=3" });
    const text = (await grpu(["config", "show", "--config", run, "--section", "rllm.rollout.n", "--origin"])).out;
    expect(text).toMatch(/^rllm:\n {2}rollout:\n {4}"?n"?: 2 +# DIR\/run\.yaml:3\n$/);
  });

  test("problems are told on standard error, with code 3 and no output", async () => {
    const { code, out, err } = await grpu(["config", "show", "rllm.rolout.n=4", "rllm.rollout.n_val=x"]);
    expect([code, out]).toEqual([3, ""]);
    expect(err).toBe(
      'error: Cannot set rllm.rolout.n: there is no such setting. Did you mean rllm.rollout.n?\nerror: Cannot set rllm.rollout.n_val: it takes int >= 1 ("x").\n2 problems\n',
    );
  });

  test("the whole of verl's tree", async () => {
    const { code, out } = await grpu(["config", "show", "rllm/backend=verl"]);
    expect(code).toBe(0);
    expect(out.split("\n").length).toBeGreaterThan(900);
  });

  test("finds a ready-made run of the package from anywhere, and tells a file that is not there", async () => {
    expect((await grpu(["config", "show", "examples/arithmetic/run.yaml", "--section", "task.name"])).out).toBe(
      "task:\n  name: arithmetic\n",
    );
    expect((await grpu(["config", "show", "nope.yaml"])).err).toBe(
      "error: Cannot read the configuration nope.yaml: there is no such file.\n",
    );
  });

  test("reads the environment it is given", async () => {
    const { out } = await grpu(["config", "show", "--section", "model.name", "model.name=${oc.env:HOME}/m"], {
      env: { HOME: "/h" },
    });
    expect(out).toBe("model:\n  name: /h/m\n");
  });
});

describe("overrides", () => {
  test("are validated alone, or over each file", async () => {
    const alone = await grpu(["config", "validate", "rllm/backend=tinker", "rllm.rollout.n=4"]);
    const needed = "A run with it also needs validation.group_size\n";
    expect([alone.code, alone.err]).toEqual([0, `overrides: rllm, no errors\n${needed}`]);
    const wrong = await grpu(["config", "validate", "rllm/backend=tinkr"]);
    expect([wrong.code, wrong.out]).toEqual([
      3,
      expect.stringMatching(/^overrides: error: .*Did you mean rllm\/backend=tinker\?\n$/),
    ]);
    const good = file("over.yaml", "rllm: {rollout: {n: 2}}\n");
    const over = await grpu(["config", "validate", good, "rllm.rollout.n=no"]);
    expect([over.code, over.out]).toEqual([3, expect.stringContaining('rllm.rollout.n: it takes int >= 1 ("no")')]);
    const verl = file("over.args", "algorithm.adv_estimator=grpo\n");
    expect((await grpu(["config", "validate", verl, "trainer.nnode=2"])).out).toContain("Did you mean trainer.nnodes?");
  });

  test("and files give explain the value that a run has, and its place", async () => {
    const yaml = file("explained.yaml", "rllm: {rollout: {n: 2}}\n");
    const shown = async (...args: string[]) => /Here +(.*)/.exec((await grpu(["config", "explain", ...args])).out)?.[1];
    expect(await shown("rllm.rollout.n", yaml)).toBe("2  (DIR/explained.yaml:1)");
    expect(await shown("rllm.rollout.n", yaml, "rllm.rollout.n=4")).toBe("4  (override rllm.rollout.n=4)");
    expect(await shown("rllm.trainer.test_freq", "rllm/backend=tinker")).toMatch(/\(config\/rllm\/base\.yaml:\d+\)$/);
    expect(await shown("rllm.rollout.n")).toBeUndefined();
    const wrong = await grpu(["config", "explain", "rllm.rollout.n", "rllm.rollout.n=no"]);
    expect([wrong.code, wrong.out]).toEqual([3, ""]);
  });

  test("a script is read with the environment and the arguments that are given", async () => {
    const input = file("env.sh", "python3 -m verl.trainer.main_ppo data.seed=${SEED:-1} trainer.experiment_name=$1\n");
    const to = ["config", "convert", "--from", "verl", "--to", "verl", "--format", "args", input];
    const { out } = await grpu([...to, "--env", "SEED=7", "--arg", "x"]);
    expect(out).toBe("data.seed=7\ntrainer.experiment_name=x\n");
    const bad = await grpu([...to, "--env", "SEED"]);
    expect([bad.code === 0, bad.err]).toEqual([
      false,
      expect.stringContaining("Cannot read --env: it has no NAME= (SEED). Write NAME=VALUE."),
    ]);
  });
});

describe("config validate", () => {
  test("tells each problem of each file", async () => {
    const bad = file("bad.yaml", "rllm:\n  rollout:\n    n: none\n  trainer:\n    test_freq: often\n");
    const good = file("good.yaml", "rllm: {rollout: {n: 4}}\n");
    const { code, out, err } = await grpu(["config", "validate", bad, good]);
    expect(code).toBe(3);
    expect(out.split("\n").map((line) => line.slice(0, 22))).toEqual([
      "DIR/bad.yaml:3: error:",
      "DIR/bad.yaml:5: error:",
      "",
    ]);
    expect(err).toBe("DIR/bad.yaml: rllm, 2 errors\nDIR/good.yaml: rllm, no errors\n");
  });

  test("a script of verl, from standard input", async () => {
    const { code, out } = await grpu(["config", "validate", "--system", "verl", "-"], {
      stdin: "trainer.nnodes=1\ntrainer.nodes=1\n",
    });
    expect(code).toBe(3);
    expect(out).toContain(
      "standard input:2: error: Cannot set trainer.nodes: verl has no such setting. Did you mean trainer.nnodes?",
    );
  });
});

describe("config explain", () => {
  test("type, default, meaning, other names, backends", async () => {
    const { out } = await grpu(["config", "explain", "rllm.rollout.n"]);
    for (const line of [
      "int >= 1",
      "8  (config/rllm/base.yaml:",
      "training.group_size",
      "actor_rollout_ref.rollout.n",
      "algorithm.repeat_times",
      "forwarded",
    ]) {
      expect(out).toContain(line);
    }
    const topK = (await grpu(["config", "explain", "rllm.rollout.train.top_k"])).out;
    expect(topK).toContain("Default   -1  (where it is not set)");
    const freq = (await grpu(["config", "explain", "rllm.trainer.test_freq"])).out;
    expect(freq).toContain("rLLM's guide says epochs; its source, and grpu, count training steps, one batch each.");
    expect((await grpu(["config", "explain", "rllm.sdk.proxy.admin_token"])).out).not.toContain("my-shared");
  });

  test("a section lists its settings", async () => {
    const { code, out } = await grpu(["config", "explain", "rllm.rollout"]);
    expect(code).toBe(0);
    expect(out.split("\n")[0]).toMatch(
      /^rllm\.rollout\.n +rollouts per prompt in training \(the group size\) \(int >= 1; 8\)$/,
    );
    expect(out).toContain("rllm.rollout.val.top_p");
  });

  test("a setting of another system, and one that does not exist", async () => {
    expect((await grpu(["config", "explain", "trainer.save_interval"])).out).toContain("trainer.save_freq");
    const { code, err } = await grpu(["config", "explain", "rllm.rollout.m"]);
    expect([code, err]).toEqual([
      2,
      "grpu: Cannot explain rllm.rollout.m: there is no such setting (nearest: rllm.rollout.n). List them with: grpu config show\n",
    ]);
  });
});

describe("config convert and diff", () => {
  const script =
    "python3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo data.truncation=left \\\n  data.train_files=$HOME/a/train.parquet trainer.nnodes=1 trainer.n_gpus_per_node=8\n";

  test("says what it chose, takes another from a profile, and returns what it took", async () => {
    const input = file("run.sh", script);
    const plain = await grpu(["config", "convert", "--from", "verl", "--to", "trinity", input]);
    expect(plain.code).toBe(0);
    expect(plain.err).toMatch(
      /computed: -> explorer\.rollout_model\.engine_num=4: the fewest that leave GPUs to train on/,
    );
    const profile = file("profile.yaml", "trinity: {explorer: {rollout_model: {engine_num: 4}}}\n");
    const [out, report] = [join(folder, "t.yaml"), join(folder, "back.yaml")];
    const done = await grpu([
      "config",
      "convert",
      "--from",
      "verl",
      "--to",
      "trinity",
      input,
      "--profile",
      profile,
      "--out",
      out,
      "--report",
      report,
    ]);
    expect([done.code, done.out]).toEqual([0, ""]);
    expect(done.err).toContain("dropped: data.truncation=left");
    expect(done.err).toContain("1 x 8 = 8 GPUs: explorer 4, auxiliary 0, trainer 4");
    const back = await grpu([
      "config",
      "convert",
      "--from",
      "trinity",
      "--to",
      "verl",
      "--format",
      "args",
      out,
      "--profile",
      report,
    ]);
    expect(back.out.split("\n")).toEqual(
      expect.arrayContaining([
        "algorithm.adv_estimator=grpo",
        "data.truncation=left",
        "data.train_files=$HOME/a/train.parquet",
      ]),
    );
    const same = await grpu(["config", "diff", input, out]);
    expect(same.code).toBe(1);
    expect(same.out).toContain("data.truncation: left -> error (default)\n");
    expect(same.out).toContain("trainer.total_epochs: 30 (default) -> 1 (default)\n");
    expect(same.out).not.toContain("adv_estimator");
  });

  test("a YAML with overrides keeps its comments", async () => {
    const input = file("v.yaml", "# mine\ntrainer:\n  nnodes: 1 # one\n");
    const { out } = await grpu([
      "config",
      "convert",
      "--from",
      "verl",
      "--to",
      "verl",
      input,
      "trainer.nnodes=2",
      "trainer.save_freq=5",
    ]);
    expect(out).toBe("# mine\ntrainer:\n  nnodes: 2 # one\n  save_freq: 5\n");
  });

  test("files that mean the same have no difference", async () => {
    const [a, b] = [
      file("a.yaml", "trainer: {nnodes: 1, save_freq: 5}\ncritic: {enable: null}\n"),
      file("b.yaml", "trainer: {save_freq: 5}\ncritic: {enable: null}\n"),
    ];
    expect(await grpu(["config", "diff", a, b])).toEqual({ code: 0, out: "", err: "the same\n" });
  });

  test("a file that does not exist", async () => {
    const { code, err } = await grpu(["config", "diff", "nope.yaml", "nope2.yaml"]);
    expect([code, err]).toEqual([4, "grpu: Cannot read the configuration: there is no such file (nope.yaml).\n"]);
  });
});

describe("config support and metrics convert", () => {
  test("the table, whole and for one backend", async () => {
    const { out } = await grpu(["config", "support", "--backend", "tinker"]);
    expect(out).toMatch(/^setting +tinker +why\n/);
    expect(out).toMatch(/^rllm\.remote_runtime\.\* +refused /m);
    expect(out).not.toMatch(/^device /m);
    expect(JSON.parse((await grpu(["config", "support", "--json"])).out).length).toBeGreaterThan(50);
  });

  test("a log is split and joined again", async () => {
    const log = file("verl.jsonl", '{"step":1,"actor/lr":1,"val-core/a/acc/mean@1":0.5}\n');
    const base = join(folder, "run");
    const split = await grpu([
      "metrics",
      "convert",
      "--from",
      "verl",
      "--to",
      "trinity",
      "--sync-interval",
      "2",
      log,
      "--out",
      base,
    ]);
    expect([split.code, split.out, existsSync(`${base}_explorer.jsonl`)]).toEqual([0, "", true]);
    expect(readFileSync(`${base}_trainer.jsonl`, "utf8")).toBe('{"step":2,"actor/lr":1}\n');
    const joined = await grpu([
      "metrics",
      "convert",
      "--from",
      "trinity",
      "--to",
      "verl",
      "--sync-interval",
      "2",
      `${base}_explorer.jsonl`,
      `${base}_trainer.jsonl`,
    ]);
    expect(JSON.parse(joined.out)).toEqual({ step: 1, "actor/lr": 1, "val-core/a/acc/mean@1": 0.5 });
    const broken = await grpu(["metrics", "convert", "--from", "verl", "--to", "trinity", "-"], {
      stdin: "{}\n",
    });
    expect(broken.err).toContain('Cannot read the metrics: it has no number "step" (-:1).');
  });
});

test("an argument is an override when it has a = or a leading ~", () => {
  expect(splitArguments(["a.yaml", "a=1", "~b", "rllm/backend=verl"])).toEqual({
    files: ["a.yaml"],
    overrides: ["a=1", "~b", "rllm/backend=verl"],
  });
});
