/**
 * Random sets of overrides through our composition and through rLLM's published `sync_config` on the tree that Hydra
 * composes: every value and every warning. Its answers to these sets are recorded; where RLLM_CHECKOUT is a checkout of
 * rLLM and a Python has Hydra, they are asked again, and SETS others from SEED. RECORD=1 writes the fixture.
 */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { DEFAULT_VERL } from "../../../src/train/config/fields/verl_tree.ts";
import { equalValues, leaves, type Tree, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { pythonWith } from "../../fixtures/python.ts";
import { attempt } from "./disk.ts";
import { type Difference, KNOWN_REFUSALS, KNOWN_VALUES } from "./known_differences.ts";
import { type OverrideSet, overrideSets, WATCHED } from "./override_sets.ts";

const at = (path: string) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
const FIXTURE = at("test/fixtures/config/published_sync.json");
const WHEEL = at(`.cache/verl/verl-${DEFAULT_VERL}-py3-none-any.whl`);
const CHECKOUT = process.env.RLLM_CHECKOUT ?? at(".cache/rllm");
const python = pythonWith("hydra");
/** Milliseconds: Hydra takes a third of a second a set. */
const TAKES_LONG = { timeout: 600_000 };
const canAsk = python !== undefined && existsSync(WHEEL) && existsSync(`${CHECKOUT}/rllm/trainer/verl/utils.py`);

type Warning = readonly [kind: string, native: string];
type Leaves = Readonly<Record<string, YamlValue>>;
interface Answer {
  readonly refused?: string | undefined;
  readonly values?: Leaves;
  readonly warnings?: readonly Warning[];
}

function ask(sets: readonly OverrideSet[]): Answer[] {
  const args = [at("test/train/config/published_sync.py"), CHECKOUT, WHEEL];
  const options = { input: JSON.stringify(sets), encoding: "utf8", maxBuffer: 2 ** 30 } as const;
  const answers = JSON.parse(execFileSync(python as string, args, options)) as { values?: Tree }[];
  return answers.map(({ values, ...rest }) => ({
    ...rest,
    ...(values && { values: Object.fromEntries(leaves(values)) }),
  }));
}

function ourAnswer({ backend, set }: OverrideSet): Answer & { readonly warnings: Warning[] } {
  const { config, warnings, problems } = attempt([`rllm/backend=${backend}`, ...set]);
  const typed = new Set(set.map((text) => text.replace(/^\++/, "").split("=")[0]));
  const refused = problems.find(
    ({ path, message }) => path === undefined || (typed.has(path) && /: it takes|no such setting/.test(message)),
  );
  // On tinker theirs says nothing where two typed values differ; ours tells it.
  const kinds = warnings.flatMap(({ message }): Warning[] => {
    const found = /^(Verl-native shared config )?(\S+) (is deprecated|conflicts with rllm\.)/.exec(message);
    return found && backend === "verl" ? [[found[1] ? "deprecated" : "conflict", found[2]!]] : [];
  });
  return { refused: refused?.message, values: Object.fromEntries(leaves(config)), warnings: kinds };
}

const sorted = (warnings: readonly Warning[] = []) => warnings.map((warning) => warning.join(" ")).sort();

/** What differs and is not known to, in words; `watched` are the settings that are compared. */
function compare(one: OverrideSet, theirs: Answer, watched?: readonly string[]): string[] {
  const ours = ourAnswer(one);
  const about = `${one.backend} ${one.set.join(" ")}`;
  if (ours.refused !== undefined || theirs.refused !== undefined) {
    const isSame = ours.refused !== undefined && theirs.refused !== undefined;
    const isKnown = KNOWN_REFUSALS.some(({ holds }) => holds({ ...one, ours: ours.refused, theirs: theirs.refused }));
    return isSame || isKnown ? [] : [`${about}: ours ${ours.refused}, theirs ${theirs.refused}`];
  }
  const paths = watched ?? [...new Set([...Object.keys(ours.values ?? {}), ...Object.keys(theirs.values ?? {})])];
  const values = paths.flatMap((path): Difference[] => {
    const pair = { ours: ours.values?.[path], theirs: theirs.values?.[path] };
    const difference = { path, ...pair, ...one };
    const isKnown = equalValues(pair.ours, pair.theirs) || KNOWN_VALUES.some(({ holds }) => holds(difference));
    return isKnown ? [] : [difference];
  });
  const told = values.map(
    ({ path, ours, theirs }) => `${about}: ${path}: ours ${JSON.stringify(ours)}, theirs ${JSON.stringify(theirs)}`,
  );
  const [our, their] = [sorted(ours.warnings), sorted(theirs.warnings)];
  if (our.join() !== their.join()) told.push(`${about}: warnings: ours ${our}, theirs ${their}`);
  return told;
}

const SETS = overrideSets(400, 11);

/** Answers as they are kept: what differs from the answer to no overrides, of the settings that are watched. */
interface Recorded {
  readonly defaults: Readonly<Record<OverrideSet["backend"], Leaves>>;
  readonly answers: readonly (OverrideSet & Omit<Answer, "values"> & { changes?: Leaves; gone?: string[] })[];
}

const watched = (values: Leaves = {}) =>
  Object.fromEntries(Object.entries(values).filter(([path]) => WATCHED.has(path)));

function record(sets: readonly OverrideSet[]): Recorded {
  const backends = ["verl", "tinker"] as const;
  const [verl, tinker, ...answers] = ask([...backends.map((backend) => ({ backend, set: [] })), ...sets]);
  const defaults = { verl: watched(verl!.values), tinker: watched(tinker!.values) };
  return {
    defaults,
    answers: sets.map((one, i) => {
      const { values, ...rest } = answers[i]!;
      if (values === undefined) return { ...one, ...rest };
      const usual: Leaves = defaults[one.backend];
      const changes = Object.entries(watched(values)).filter(([path, value]) => !equalValues(usual[path], value));
      const gone = Object.keys(usual).filter((path) => !(path in values));
      return { ...one, ...rest, changes: Object.fromEntries(changes), gone };
    }),
  };
}

function playBack(
  { defaults }: Recorded,
  { backend, changes, gone = [], ...rest }: Recorded["answers"][number],
): Answer {
  if (rest.refused !== undefined) return rest;
  const values = Object.entries({ ...defaults[backend], ...changes }).filter(([path]) => !gone.includes(path));
  return { ...rest, values: Object.fromEntries(values) };
}

describe("the published synchronisation", () => {
  test.runIf(process.env.RECORD)("recorded", TAKES_LONG, () => {
    const { defaults, answers } = record(SETS);
    const lines = answers.map((answer) => JSON.stringify(answer)).join(",\n");
    writeFileSync(FIXTURE, `{"defaults":${JSON.stringify(defaults)},\n"answers":[\n${lines}\n]}\n`);
  });

  const recorded = (): Recorded => JSON.parse(readFileSync(FIXTURE, "utf8"));

  test("400 recorded sets: the same values and warnings", () => {
    const { answers, ...rest } = recorded();
    expect(answers.map(({ backend, set }) => ({ backend, set }))).toEqual(SETS);
    expect(answers.filter(({ refused }) => refused === undefined).length).toBeGreaterThan(350);
    const differences = answers.flatMap((answer) =>
      compare(answer, playBack({ answers, ...rest }, answer), [...WATCHED]),
    );
    expect(differences).toEqual([]);
  });

  test("most answers change something, and many warn", () => {
    const { answers } = recorded();
    expect(answers.filter(({ changes = {} }) => Object.keys(changes).length > 0).length).toBeGreaterThan(330);
    expect(answers.filter(({ warnings = [] }) => warnings.length > 0).length).toBeGreaterThan(120);
  });

  test.skipIf(!canAsk)("the record is what it says today", TAKES_LONG, () => {
    const sample = SETS.filter((_, i) => i % 8 === 0);
    const { defaults, answers } = recorded();
    expect(record(sample)).toEqual({ defaults, answers: answers.filter((_, i) => i % 8 === 0) });
  });

  test.skipIf(!canAsk)("other sets: of verl every setting, of tinker what is shared", TAKES_LONG, () => {
    const sets = overrideSets(Number(process.env.SETS ?? 60), Number(process.env.SEED ?? 12));
    const answers = ask(sets);
    const watched = (backend: string) => (backend === "tinker" ? [...WATCHED] : undefined);
    expect(sets.flatMap((one, i) => compare(one, answers[i]!, watched(one.backend)))).toEqual([]);
  });
});
