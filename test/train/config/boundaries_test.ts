// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** Where a rule, a message or a name begins and ends: one step to either side of each. */
import { describe, expect, test } from "vitest";
import type { Field } from "../../../src/train/config/fields/field.ts";
import { fitValue } from "../../../src/train/config/fields/fit.ts";
import { isOlderVerl, movedInVerl } from "../../../src/train/config/fields/rename.ts";
import { reasonOn, statusOf } from "../../../src/train/config/fields/support.ts";
import { allVerlLeaves, VERL_VERSIONS, verlLeaves } from "../../../src/train/config/fields/verl_tree.ts";
import { parseValue } from "../../../src/train/config/hydra/override.ts";
import { readWord } from "../../../src/train/config/hydra/parse_value.ts";
import { formatProblem, throwProblems } from "../../../src/train/config/problem.ts";
import { checkRules } from "../../../src/train/config/rules/rules.ts";
import { SERVICE_RULES } from "../../../src/train/config/rules/services.ts";
import { explainUnknown, fieldAt, schemaOf } from "../../../src/train/config/schema.ts";
import { type Tree, unflatten, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { attempt, complaints, compose, readConfig } from "./disk.ts";

describe("a problem", () => {
  test("of the backend's name comes alone: without a backend every other setting would look unknown", () => {
    expect(complaints(["rllm/backend=tinkr", "tinker_base_url=http://x"])).toEqual([
      expect.stringMatching(/^Cannot choose rllm\/backend=tinkr: /),
    ]);
    expect(complaints(["tinker_base_url=http://x", "rllm.rolout.n=1"])).toHaveLength(2);
  });

  test("of an override masks a secret under any sign", () => {
    for (const sign of ["", "+", "++", "~"]) {
      const told = complaints([`${sign}token='hunter2`]);
      expect(told).toEqual([expect.stringContaining("token=********")]);
      expect(told.join()).not.toContain("hunter2");
    }
  });

  test("of an interpolation keeps the brackets of its text, and loses those of its place", () => {
    expect(complaints(["rllm.trainer.experiment_name='${oc.env:MY (RUN)}'"])).toEqual([
      "Cannot resolve ${oc.env:MY (RUN)}: the environment has no MY (RUN) (in rllm.trainer.experiment_name).",
    ]);
  });

  test("that two settings of a user have alike is told of both, with their lines", () => {
    const texts = { "a.yaml": "rllm:\n  trainer:\n    experiment_name: ${no.such}\n    project_name: ${no.such}\n" };
    const { problems } = attempt([], { texts });
    expect(problems.map(({ path, line }) => [path, line])).toEqual([
      ["rllm.trainer.project_name", 4],
      ["rllm.trainer.experiment_name", 3],
    ]);
    // A packaged default that follows is no second problem.
    const [first, ...more] = complaints(["rllm.trainer.project_name='${no.such}'"]);
    expect([first, more]).toEqual([expect.stringContaining("(in rllm.trainer.project_name)"), []]);
  });

  test("has a place of a file, of a line, or none", () => {
    const problem = { severity: "warning", message: "m" } as const;
    expect(formatProblem(problem)).toBe("warning: m");
    expect(formatProblem({ ...problem, file: "a" })).toBe("a: warning: m");
    expect(formatProblem({ ...problem, file: "a", line: 3 })).toBe("a:3: warning: m");
    expect(formatProblem({ ...problem, line: 3 })).toBe("warning: m");
    expect(() => throwProblems([problem])).not.toThrow();
    expect(() => throwProblems([problem, { ...problem, severity: "error", message: "only" }])).toThrow(/^only\.?$/);
  });
});

test.each([
  [77, `"${"x".repeat(77)}"`],
  [78, `"${"x".repeat(78)}"`],
  [79, `"${"x".repeat(76)}...`],
])("a value of %i characters is shown as %s", (count, shown) => {
  const field: Field = { type: "int", default: 1, describe: "", nullable: false };
  expect(fitValue("a", field, "x".repeat(count)).problem).toBe(`Cannot set a: it takes int (${shown}).`);
});

test.each<[path: string, moved: string | undefined, isOlder: boolean]>([
  ["reward_manager", "reward.reward_manager", true],
  ["reward_manager.name", "reward.reward_manager.name", true],
  ["reward_managers", undefined, false],
  ["x.reward_manager", undefined, false],
  ["critic.model.fsdp_config", "critic.fsdp", true],
  ["critic.model.fsdp_config.param_offload", "critic.fsdp.param_offload", true],
  ["critic.model.fsdp_configs", undefined, false],
  ["reward_model.model.path", "reward.reward_model.model_path", true],
  ["reward_model.model.paths", "reward.reward_model.model.paths", true],
  ["reward_model.enable", "reward.reward_model.enable", true],
  ["custom_reward_function.path", "reward.custom_reward_function.path", true],
  ["data.sampler", undefined, true],
  ["data.datagen.path", undefined, true],
  ["data.samplers", undefined, false],
  ["xdata.sampler", undefined, false],
  ["trainer.use_legacy_worker_impl", undefined, true],
  ["actor_rollout_ref.actor.sum_pi_squared_checkpointing", undefined, true],
  ["actor_rollout_ref.rollout.skip_rollout", undefined, true],
  ["actor_rollout_ref.rollout.skip_dump_dir", undefined, true],
  ["actor_rollout_ref.rollout.skip", undefined, false],
  ["actor_rollout_ref.rollout.multi_turn.interaction_config_path", undefined, true],
  ["data.train_files", undefined, false],
])("%s of an older verl is %s now", (path, moved, isOlder) => {
  expect([movedInVerl(path), isOlderVerl(path)]).toEqual([moved, isOlder]);
});

test.each<[string, YamlValue]>([
  ["", ""],
  ["7", 7],
  ["1_0", 10],
  ["-0", 0],
  ["1e-3", 1e-3],
  ["true", true],
  ["null", null],
  ["a", "a"],
  ["7 8", "7 8"],
  ["7é", "7é"],
  ["é", "é"],
  ["9007199254740991", 9007199254740991],
  ["9007199254740992", "9007199254740992"],
  ["9_007_199_254_740_992", "9_007_199_254_740_992"],
  ["1e300", 1e300],
])("the argument %j of a resolver is %j", (word, value) => {
  expect(readWord(word)).toBe(value);
});

test.each<[string, YamlValue | RegExp]>([
  ["int(3.7)", 3],
  ["int(value=3.7)", 3],
  ["int(1,2)", /it is a sweep over several values/],
  ["int(1,value=2)", /it calls int\(\) with other arguments than one value/],
  ["int(value=1,other=2)", /it calls int\(\) with other arguments than one value/],
  ["int(other=1)", /it calls int\(\) with other arguments than one value/],
  ["int(1=2)", /it has = outside quotes/],
  ["int(a=)", /it has \) outside quotes/],
  ["a,", /it is a sweep/],
  ["int()", /it calls int\(\) with other arguments than one value/],
  ["str(2.0)", "2.0"],
  ["str(null)", /it has a value that is no str/],
  ["float(true)", 1],
  ["float(null)", /it has a value that is no float/],
  ["bool(0)", false],
  ["bool(0.0)", false],
  ["bool(0.5)", true],
  ["bool('True')", true],
  ["bool(yes)", /it has a value that is no bool/],
  ["int([1.5,{a:2.5}])", [1, { a: 2 }]],
  ["int('1_0')", 10],
  ["int('1__0')", /it has a value that is no int/],
  ["int(inf)", /it has a value that is no int/],
  ["sort([3,1,2])", [1, 2, 3]],
  ["sort([3,1,2],reverse=true)", [3, 2, 1]],
  ["sort([3,1,2],reverse=false)", [1, 2, 3]],
  ["sort(list=[b,a])", ["a", "b"]],
  ["sort([2,true,1.5])", [true, 1.5, 2]],
  ["sort([1,a])", /it sorts values that cannot be compared/],
  ["sort([1],other=2)", /it calls sort\(\) with other arguments than a list/],
  ["sort()", /it calls sort\(\) with other arguments than a list/],
  ["sort(1,2)", /it is a sweep/],
  ["sort([1],sweep=true)", /it is a sweep/],
  ["sort(7)", 7],
  ["range(1,3)", /it is a sweep/],
])("the call %s gives %s", (text, result) => {
  if (result instanceof RegExp) expect(() => parseValue(text)).toThrow(result);
  else expect(parseValue(text)).toEqual(result);
});

describe("support", () => {
  test("of a setting that one backend alone has is absent on verl", () => {
    for (const path of ["device", "tinker_base_url", "model.init.layers", "device.x"])
      expect([path, statusOf(path, "verl")]).toEqual([path, "-"]);
    expect(statusOf("trainer.some_new_setting", "verl")).toBe("forwarded");
    expect([statusOf("tinker_base_url", "tinker"), statusOf("tinker_base_url", "local")]).toEqual(["acts", "-"]);
    expect([statusOf("device", "local"), statusOf("device", "trinity")]).toEqual(["acts", "-"]);
  });

  test("of a name that verl shares with another backend is verl's", () => {
    for (const path of ["data.train_files", "data.val_files"])
      expect([path, statusOf(path, "verl"), statusOf(path, "local")]).toEqual([path, "forwarded", "acts"]);
  });

  test("of one that Trinity lacks says so; why it acts elsewhere is no reason for that", () => {
    expect(statusOf("rllm.algorithm.use_rllm", "trinity")).toBe("refused");
    expect(reasonOn("rllm.algorithm.use_rllm", "trinity")).toBe("Trinity has no such setting");
    expect(statusOf("rllm.episode_logging.episode_log_dir", "trinity")).toBe("dropped");
    expect(reasonOn("rllm.episode_logging.episode_log_dir", "trinity")).toMatch(/^Trinity has no such setting; /);
    expect(reasonOn("rllm.algorithm.use_rllm", "local")).toContain("rLLM deprecated it");
    expect(reasonOn("training.group_size", "local")).toBe("the same setting as rllm.rollout.n");
    expect(reasonOn("training.learning_rate", "verl")).toBe("as actor_rollout_ref.actor.optim.lr");
  });
});

test("a setting of several trees of verl's has the default tree's value", () => {
  const path = "actor_rollout_ref.rollout.max_num_seqs";
  const values = VERL_VERSIONS.map((version) => verlLeaves(readConfig, version).get(path)?.value);
  expect(values).toEqual([1024, 256]);
  expect(allVerlLeaves(readConfig).get(path)?.value).toBe(1024);
});

describe("a schema", () => {
  const local = schemaOf("local");
  test("knows a setting, what stands below a dict, and nothing below a value", () => {
    expect(fieldAt(local, "rllm.rollout.n")).toMatchObject({ type: "int" });
    expect(fieldAt(local, "task.args.a.b")).toBe("open");
    expect(fieldAt(local, "rllm.rollout.n.x")).toBeUndefined();
    expect(fieldAt(local, "nope")).toBeUndefined();
    expect(local.sections.has("rllm.rollout")).toBe(true);
    expect(local.sections.has("rllm.rollout.n")).toBe(false);
  });

  test.each([
    ["tinker_base_url", "the local backend has no such setting. It belongs to rllm/backend=tinker."],
    ["ray.address", "the local backend has no such setting. It belongs to rllm/backend=verl|trinity."],
    ["hydra", "it configures Hydra, which is not used here. Remove it."],
    ["hydra.run.dir", "it configures Hydra, which is not used here. Remove it."],
    ["rllm.rolout.n", "there is no such setting. Did you mean rllm.rollout.n?"],
    ["rllm.async_trainin", "there is no such setting. Did you mean rllm.async_training?"],
    ["qqqqqqqq.zzzzzzzzz", "there is no such setting. List them with: grpu config show"],
  ])("explains the unknown name %s", (path, why) => {
    expect(explainUnknown(local, path)).toBe(`Cannot set ${path}: ${why}`);
  });

  test("lets verl's shared settings be null, and no other backend's", () => {
    expect(complaints(["rllm/backend=verl", "rllm.rollout.n=null"])).toEqual([]);
    expect(complaints(["rllm.rollout.n=null"])).toEqual(["Cannot set rllm.rollout.n: it takes int >= 1, not null."]);
  });
});

describe("a rule between settings, where a value is missing or odd", () => {
  const FINE: Readonly<Record<string, YamlValue>> = {
    "rllm.rejection_sample.multiplier": 1,
    "rllm.rollout.train.temperature": 1,
    "rllm.algorithm.router_replay": "disabled",
    "rllm.data.max_prompt_length": 10,
    "rllm.data.max_response_length": 20,
    "training.max_length": 29,
    "training.max_off_policy_threshold": 0,
    "training.resume_mode": "auto",
    "training.resume_from_path": null,
    "model.name": null,
    "model.init.hidden_size": 16,
    "model.init.heads": 4,
    "model.init.kv_heads": 3,
  };
  const found = (changes: Record<string, YamlValue>, backend: "local" | "tinker" = "local") => {
    const tree = unflatten(Object.entries({ ...FINE, ...changes }));
    return checkRules(tree, { backend, isReady: true }).map(({ path, severity }) => `${severity} ${path}`);
  };
  const [kv, most] = ["error model.init.kv_heads", "warning training.max_length"];

  test.each<[string, Record<string, YamlValue>, string[]]>([
    ["both are found", {}, [kv, most]],
    ["no width", { "model.init.hidden_size": null }, [most]],
    ["no heads", { "model.init.heads": null }, [most]],
    ["no kv_heads", { "model.init.kv_heads": null }, [most]],
    ["a prompt length that is not set", { "rllm.data.max_prompt_length": "???" }, [kv]],
    ["no longest sequence", { "training.max_length": null }, [kv]],
    ["a sequence as long as may be", { "training.max_length": 30 }, [kv]],
  ])("%s", (_, changes, expected) => {
    expect(found(changes)).toEqual(expected);
  });

  test("on Tinker, temperature and replay", () => {
    const paths = (changes: Record<string, YamlValue>) => found({ "training.max_length": 30, ...changes }, "tinker");
    expect(paths({})).toEqual([]);
    const cold = { "rllm.rollout.train.temperature": 0.5 };
    expect(paths(cold)).toEqual([]);
    const withReference = (temperature: number) =>
      paths({ "rllm.rollout.train.temperature": temperature, "rllm.algorithm.kl_beta": 0.1 });
    expect([0.5, 1, 0].map(withReference)).toEqual([["error rllm.rollout.train.temperature"], [], []]);
    expect(paths({ "rllm.algorithm.router_replay": "R2" })).toEqual(["error rllm.algorithm.router_replay"]);
    expect(paths({ "training.resume_mode": "resume_path" })).toEqual(["error training.resume_from_path"]);
  });

  test("a strategy is warned of only where the command line names it", () => {
    const tree: Tree = unflatten(
      Object.entries({
        ...FINE,
        "training.max_off_policy_threshold": null,
        "training.max_off_policy_strategy": "drop",
      }),
    );
    const strategy = "training.max_off_policy_strategy";
    const paths = (isTyped?: (path: string) => boolean) =>
      checkRules(tree, { backend: "local", isReady: true, ...(isTyped && { isTyped }) }).map(({ path }) => path);
    expect(paths()).not.toContain(strategy);
    expect(paths((path) => path === strategy)).toContain(strategy);
  });
});

describe("an agent in another process", () => {
  const told = (...set: string[]) => complaints(set);
  test.each(["http://h/run", "https://h/run", "http://127.0.0.1:1/x"])("%s is an address", (address) => {
    expect(told(`task.agent='${address}'`)).toEqual([]);
  });
  test.each(["xhttp://h", "httpx://h", "http://me@h/run", "http://:pw@h/run", "h/run", "file:///run"])(
    "%s is none",
    (address) => {
      expect(told(`task.agent='${address}'`)).toEqual([expect.stringMatching(/^Cannot ask the agent "/)]);
    },
  );
  test("of a list, the one that is no text is named", () => {
    expect(told("task.agent=['http://h/run',7]")).toEqual([expect.stringMatching(/^Cannot ask the agent 7: /)]);
  });

  test("a list in the list is no address", () => {
    expect(told("task.agent=[['http://h/run']]")).toEqual([expect.stringMatching(/^Cannot ask the agent \["http/)]);
  });

  test("each setting that only its gateway reads is warned of without it, and its default is not", () => {
    const names: Readonly<Record<string, string>> = {
      "rllm.sdk.proxy.host": "h",
      "rllm.sdk.proxy.port": "5000",
      "rllm.sdk.proxy.mode": "external",
      "rllm.sdk.proxy.admin_token": "own",
      "rllm.gateway.host": "h",
      "rllm.gateway.port": "5000",
      "rllm.gateway.tunnel": "https://t.example",
    };
    for (const [path, value] of Object.entries(names)) {
      const { warnings } = compose([`${path}=${value}`], { allowUnsupported: true });
      expect(warnings.filter(({ message }) => message.includes("no gateway starts")).map((it) => it.path)).toEqual([
        path,
      ]);
    }
    expect(compose(["rllm.sdk.proxy.port=4000", "rllm.gateway.tunnel=null"]).warnings).toEqual([]);
  });

  test("rules of services hold for the loop's own backends alone", () => {
    const tree = unflatten([["task.agent", "nowhere"]]);
    const paths = (backend: "local" | "tinker" | "verl") =>
      checkRules(tree, { backend, isReady: true, more: SERVICE_RULES }).filter(({ path }) => path === "task.agent")
        .length;
    expect([paths("local") > 0, paths("tinker") > 0, paths("verl")]).toEqual([true, true, 0]);
  });
});
