/** Files of verl and tasksets of Trinity, both ways. */
import { equalValues, type YamlValue } from "../../../train/config/yaml/tree.ts";
import type { Build } from "../build.ts";
import { expandHome, valueList } from "../values.ts";

const VAL = "actor_rollout_ref.rollout.val_kwargs";
const INPUT = "buffer.explorer_input";
const RESPONSE_KEY = "answer";

/** Sampling of validation, which verl has once and Trinity per taskset. */
const EVAL_ROWS: readonly (readonly [verl: string, trinity: string])[] = [
  [`${VAL}.n`, "repeat_times"],
  [`${VAL}.temperature`, "rollout_args.temperature"],
  [`${VAL}.top_p`, "rollout_args.top_p"],
  [`${VAL}.top_k`, "rollout_args.top_k"],
];

export function putTasksets(build: Build): void {
  const common = takeCommon(build);
  putFiles(build, {
    source: "data.train_files",
    at: `${INPUT}.tasksets`,
    suffix: "",
    common: [...common.format, ...common.order],
  });
  const frequency = build.peek("trainer.test_freq");
  const isOff = typeof frequency === "number" && frequency <= 0;
  if (isOff || valueList(build.peek("data.val_files")).length === 0) {
    const why = isOff ? "validation is off: no eval_tasksets are written" : "there are no data.val_files";
    for (const path of ["data.val_files", `${VAL}.do_sample`, ...EVAL_ROWS.map(([verl]) => verl)]) {
      if (build.has(path)) build.drop(path, why);
    }
    return;
  }
  const evaluation: Common[] = [];
  const greedy = `${VAL}.do_sample`;
  const isGreedy = build.take(greedy) === false;
  if (build.has(greedy) && !isGreedy) build.drop(greedy, "Trinity samples at the temperature of the taskset");
  for (const [verl, trinity] of EVAL_ROWS) {
    const value = build.take(verl);
    const isFrozen = isGreedy && trinity.endsWith("temperature");
    const from = [verl, greedy].filter((path) => build.has(path));
    if (isFrozen) evaluation.push({ key: trinity, value: 0, from });
    else if (value !== undefined) evaluation.push({ key: trinity, value, from: [verl] });
  }
  putFiles(build, {
    source: "data.val_files",
    at: `${INPUT}.eval_tasksets`,
    suffix: "_eval",
    common: [...common.format, ...evaluation],
  });
}

/** A setting that every taskset has, with verl's equivalent. */
interface Common {
  readonly key: string;
  readonly value: YamlValue;
  readonly from: readonly string[];
}

function takeCommon(build: Build): { format: Common[]; order: Common[] } {
  const selector = build.options.target === "new" ? "data_selector" : "task_selector";
  const order: Common[] = [];
  const hasRows = build.has("data.train_files");
  const shuffle = build.take("data.shuffle");
  if (shuffle !== undefined && !hasRows) build.drop("data.shuffle", "there are no data.train_files");
  else if (shuffle !== undefined) {
    const value = shuffle === true ? "shuffle" : "sequential";
    order.push({ key: `${selector}.selector_type`, value, from: ["data.shuffle"] });
  } else if (hasRows) build.check("verl shuffles by default; Trinity takes rows in order");
  const length = "actor_rollout_ref.rollout.response_length";
  const tokens = hasRows ? build.take(length) : undefined;
  if (tokens !== undefined) order.push({ key: "rollout_args.max_tokens", value: tokens, from: [length] });
  const seed = build.take("data.seed");
  if (seed !== undefined && (seed === null || !hasRows)) build.drop("data.seed", "Trinity seeds each taskset with 42");
  else if (seed !== undefined) order.push({ key: `${selector}.seed`, value: seed, from: ["data.seed"] });
  const format: Common[] = [];
  for (const [key, fallback] of [
    ["prompt_key", "prompt"],
    ["response_key", RESPONSE_KEY],
    ["image_key", undefined],
    ["video_key", undefined],
  ] as const) {
    const path = `data.${key}`;
    const value = build.take(path) ?? fallback;
    if (value === undefined) continue;
    format.push({ key: `format.${key}`, value, from: build.has(path) ? [path] : [] });
    const isWritten = hasRows || build.has("data.val_files");
    if (build.has(path) && !isWritten) build.drop(path, "there are no tasksets");
  }
  return { format, order };
}

interface Files {
  readonly source: string;
  readonly at: string;
  readonly suffix: string;
  readonly common: readonly Common[];
}

function putFiles(build: Build, { source, at, suffix, common }: Files): void {
  const names = new Set<string>();
  for (const [i, file] of valueList(build.take(source)).entries()) {
    const { name, path, split } = readFileName(String(expandHome(file)));
    let unique = name + suffix;
    for (let copy = 2; names.has(unique); copy++) unique = `${name}${suffix}_${copy}`;
    names.add(unique);
    const from = [source];
    build.put(`${at}.${i}.name`, unique, { kind: "constant", message: "from the folder's name" });
    build.put(`${at}.${i}.storage_type`, "file", { kind: "constant" });
    build.put(`${at}.${i}.path`, path, { kind: "split", from });
    build.put(`${at}.${i}.split`, split, { kind: "split", from });
    for (const { key, value, from: keySource } of common)
      build.put(`${at}.${i}.${key}`, value, { kind: "split", from: keySource });
  }
}

/** `<dir>/<split>.parquet` is a dataset folder and its split; any other file stays a file. */
function readFileName(file: string): { name: string; path: string; split: string } {
  const slash = file.lastIndexOf("/");
  const [folder, base] = [slash < 0 ? "." : file.slice(0, slash), file.slice(slash + 1)];
  const stem = /^(.*)\.parquet$/.exec(base)?.[1];
  const name = folder.slice(folder.lastIndexOf("/") + 1) || "taskset";
  if (stem !== undefined && slash >= 0) return { name, path: folder, split: stem };
  return { name: base.replace(/\.\w+$/, "") || "taskset", path: file, split: "train" };
}

interface Taskset {
  readonly index: number;
  /** `buffer.explorer_input.tasksets.0` */
  readonly at: string;
  readonly keys: ReadonlyMap<string, YamlValue>;
}

/** Writes verl's files from Trinity's tasksets. Reports tasksets that disagree on a setting that verl has only once. */
export function takeTasksets(build: Build): void {
  const train = [...readTasksets(build, `${INPUT}.tasksets`), ...readTasksets(build, `${INPUT}.taskset`)];
  const evaluation = readTasksets(build, `${INPUT}.eval_tasksets`);
  putFileList(build, train, "data.train_files");
  putFileList(build, evaluation, "data.val_files");
  putAgreed(build, {
    sets: [...train, ...evaluation],
    key: "format.prompt_key",
    verl: "data.prompt_key",
    fallback: "prompt",
  });
  for (const key of ["image_key", "video_key"]) {
    putAgreed(build, { sets: [...train, ...evaluation], key: `format.${key}`, verl: `data.${key}` });
  }
  takeSelector(build, train);
  takeSampling(build, train);
  for (const [verl, key] of EVAL_ROWS) putAgreed(build, { sets: evaluation, key, verl });
  const temperatures = evaluation.map((set) => set.keys.get("rollout_args.temperature"));
  const isSampled = temperatures.some((value) => typeof value === "number" && value > 0);
  if (isSampled)
    build.put(`${VAL}.do_sample`, true, {
      kind: "computed",
      message: "a temperature above 0 needs it in verl",
    });
  for (const set of [...train, ...evaluation]) dropLocalKeys(build, set);
}

function readTasksets(build: Build, at: string): Taskset[] {
  const sets = new Map<number, Map<string, YamlValue>>();
  for (const [path, { value }] of build.source.values) {
    const match = new RegExp(`^${at.replaceAll(".", "\\.")}\\.(?:(\\d+)\\.)?(.+)$`).exec(path);
    if (!match) continue;
    const index = Number(match[1] ?? -1);
    if (!sets.has(index)) sets.set(index, new Map());
    sets.get(index)?.set(match[2]!, value);
  }
  return [...sets].map(([index, keys]) => ({ index, keys, at: index < 0 ? at : `${at}.${index}` }));
}

function putFileList(build: Build, sets: readonly Taskset[], verl: string): void {
  if (sets.length === 0) return;
  const files = sets.map((set) => {
    const [path, split] = [build.take(`${set.at}.path`), build.take(`${set.at}.split`) ?? "train"];
    const storage = build.take(`${set.at}.storage_type`) ?? "file";
    if (storage !== "file")
      build.fail(
        `Cannot convert ${set.at}.storage_type=${storage}: verl reads only files. Export the rows to a file.`,
        `${set.at}.storage_type`,
      );
    const subset = build.take(`${set.at}.subset_name`);
    if (typeof subset === "string") {
      build.check(`verl reads one file: ${set.at}.subset_name=${subset} is taken as a folder`, `${set.at}.subset_name`);
    }
    const folder = typeof subset === "string" ? `${path}/${subset}` : path;
    for (const key of ["name", "format.response_key"]) {
      if (build.has(`${set.at}.${key}`)) build.take(`${set.at}.${key}`);
    }
    return /\.(parquet|jsonl?|csv|arrow)$/.test(String(path)) ? String(path) : `${folder}/${split}.parquet`;
  });
  const from = sets.map((set) => `${set.at}.path`);
  build.put(verl, files.length === 1 ? files[0]! : files, {
    kind: sets.length > 1 ? "merged" : "renamed",
    from,
  });
}

interface Agreed {
  readonly sets: readonly Taskset[];
  readonly key: string;
  readonly verl: string;
  /** verl's default: it is not written. */
  readonly fallback?: YamlValue;
}

function putAgreed(build: Build, { sets, key, verl, fallback }: Agreed): void {
  const holders = sets.filter((set) => set.keys.has(key));
  if (holders.length === 0) return;
  const values = sets.map((set) => set.keys.get(key) ?? fallback);
  for (const set of holders) build.take(`${set.at}.${key}`);
  if (values.some((value) => !equalValues(value, values[0]))) {
    build.fail(
      `Cannot convert ${key}: verl has one ${verl} and the tasksets differ (${values.map((value) => JSON.stringify(value ?? null)).join(", ")}). ` +
        `Make them equal, or give ${verl} in the profile.`,
      `${holders[0]!.at}.${key}`,
    );
    if (build.options.profile.has(verl)) build.problems.pop();
    return;
  }
  if (!equalValues(values[0], fallback)) {
    build.put(verl, values[0] as YamlValue, { kind: "merged", from: holders.map((set) => `${set.at}.${key}`) });
  }
}

function takeSelector(build: Build, sets: readonly Taskset[]): void {
  for (const name of ["task_selector", "data_selector"]) {
    const at = sets.find((set) => set.keys.has(`${name}.selector_type`))?.at;
    if (at !== undefined) {
      const type = build.peek(`${at}.${name}.selector_type`);
      for (const set of sets) build.take(`${set.at}.${name}.selector_type`);
      if (type === "shuffle" || type === "sequential") {
        build.put("data.shuffle", type === "shuffle", {
          kind: "renamed",
          from: [`${at}.${name}.selector_type`],
        });
      } else build.drop(`${at}.${name}.selector_type`, "verl only shuffles, or does not");
    }
    putAgreed(build, { sets, key: `${name}.seed`, verl: "data.seed" });
  }
}

/** verl has one training temperature, so those of the tasksets must agree. */
function takeSampling(build: Build, sets: readonly Taskset[]): void {
  for (const name of ["temperature", "top_p", "top_k"]) {
    const key = `rollout_args.${name}`;
    const holders = sets.filter((set) => set.keys.has(key));
    if (holders.length === 0) continue;
    const verl = `actor_rollout_ref.rollout.${name}`;
    const common = build.peek(`model.${name}`) ?? (name === "top_k" ? -1 : 1);
    const values = sets.map((set) => set.keys.get(key) ?? common);
    if (values.every((value) => equalValues(value, common))) {
      for (const set of holders) build.drop(`${set.at}.${key}`, `the same as model.${name}`);
    } else putAgreed(build, { sets: sets.map((set) => withDefault(set, key, common)), key, verl });
  }
}

function withDefault(set: Taskset, key: string, value: YamlValue): Taskset {
  return set.keys.has(key) ? set : { ...set, keys: new Map([...set.keys, [key, value]]) };
}

function dropLocalKeys(build: Build, set: Taskset): void {
  for (const key of set.keys.keys()) {
    const path = `${set.at}.${key}`;
    if (!build.used.has(path)) build.drop(path, "verl has no setting per taskset");
  }
}
