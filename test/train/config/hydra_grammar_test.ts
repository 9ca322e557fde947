/**
 * The grammar of overrides, text by text, against the answers of Hydra's own parser: recorded for those of the fixture,
 * asked again where a Python here has Hydra, for these and for random ones. To record a longer list, add texts to it
 * (with null for an answer) and run this with RECORD=1.
 */
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { parseOverride } from "../../../src/train/config/hydra/override.ts";
import { equalValues, isTree, type Tree, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { pythonWith } from "../../fixtures/python.ts";
import { randomOf } from "./random.ts";

/** Null for what is refused. */
type Answer = readonly [kind: string, key: string, value: YamlValue] | null;

const FIXTURE = new URL("../../fixtures/config/hydra_overrides.json", import.meta.url);
const SCRIPT = fileURLToPath(new URL("./hydra_overrides.py", import.meta.url));
const python = pythonWith("hydra");

/** What we refuse although Hydra takes it. */
const OURS: readonly (readonly [rule: RegExp, reason: string])[] = [
  [/shuffle\(/, "the order would be another in each run"],
  [/\d[\d_]{15,}/, "a whole number beyond 2^53 is not exact"],
  [/__proto__/, "it is no plain name in JavaScript"],
  [/^[+~]*(=|$)/, "it has no name"],
  [/^[+~]*[^=]*@/, "groups can only be chosen"],
  [/^~[^=]*\//, "groups can only be chosen"],
];
/** What we take although Hydra refuses it: an index in a key, and a dot in a name. */
const MORE = /^[+~]*[^=]*(\[\d+\]|\\\.)/;

function askHydra(texts: readonly string[]): Answer[] {
  const options = { input: JSON.stringify(texts), encoding: "utf8", maxBuffer: 2 ** 28 } as const;
  return JSON.parse(execFileSync(python as string, [SCRIPT], options));
}

function ourAnswer(text: string): Answer {
  try {
    const { kind, key, value = null } = parseOverride(text);
    return [kind === "group" ? "set" : kind, key, value];
  } catch {
    return null;
  }
}

function revive(value: YamlValue): YamlValue {
  if (Array.isArray(value)) return value.map(revive);
  if (!isTree(value)) return value;
  if (typeof value.float === "string" && Object.keys(value).length === 1)
    return Number(value.float.replace("inf", "Infinity"));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, revive(item)])) as Tree;
}

/** The difference between our answer and Hydra's, if any. */
function difference(text: string, theirs: Answer): string | undefined {
  const ours = ourAnswer(text);
  if (ours === null && theirs !== null && OURS.some(([rule]) => rule.test(text))) return undefined;
  if (ours !== null && theirs === null && MORE.test(text)) return undefined;
  const isGroup = /\//.test(theirs?.[1] ?? "") || /^(verl|model_engine)$/.test(theirs?.[1] ?? "");
  const same =
    ours === null || theirs === null
      ? ours === theirs
      : ours[0] === theirs[0] || isGroup
        ? ours[1] === theirs[1] && (isGroup || equalValues(ours[2], revive(theirs[2])))
        : false;
  return same ? undefined : `${text}: ours ${JSON.stringify(ours)}, Hydra's ${JSON.stringify(theirs)}`;
}

const differences = (pairs: readonly (readonly [string, Answer])[]) =>
  pairs.flatMap(([text, answer]) => difference(text, answer) ?? []);

/** What random values are made of, with a space between. */
const PIECES = String.raw`a b-c _x 0 007 1_0 3.5 1e-6 .5 5. -1 +2 inf nan true null [ ] { } ( ) , : = ' " \ \, \= \\ \'
  \${a.b} \${oc.env:HOME} $ % * @ ? | / - + . # ~ ! é int( float( str( bool( sort( choice( f( [1,2] {a:1} "k" value=`
  .replaceAll("\\${", "${")
  .split(/\s+/)
  .concat(" ", "  ", "\t", "\n", "'x y'");

describe("overrides as Hydra reads them", () => {
  const recorded: [string, Answer][] = JSON.parse(readFileSync(FIXTURE, "utf8"));

  test.runIf(process.env.RECORD)("recorded", () => {
    const texts = recorded.map(([text]) => text);
    const answers = askHydra(texts);
    const lines = texts.map((text, i) => JSON.stringify([text, answers[i]]));
    writeFileSync(FIXTURE, `[\n${lines.join(",\n")}\n]\n`);
  });

  test("every text of the fixture", () => {
    expect(recorded.length).toBeGreaterThan(250);
    expect(differences(recorded)).toEqual([]);
  });

  test.skipIf(python === undefined)("the fixture is what Hydra says today", () => {
    const answers = askHydra(recorded.map(([text]) => text));
    expect(answers.map((answer, i) => [recorded[i]![0], answer])).toEqual(recorded);
  });

  test.skipIf(python === undefined)("3,000 random texts", () => {
    const { below, pick } = randomOf(7);
    const texts = Array.from({ length: 3000 }, () => {
      const pieces = Array.from({ length: 1 + below(6) }, () => pick(PIECES));
      return `${pick(["", "", "+", "++", "~"])}a.b=${pieces.join("")}`;
    });
    const answers = askHydra(texts);
    expect(answers.filter((answer) => answer !== null).length).toBeGreaterThan(300);
    expect(differences(texts.map((text, i) => [text, answers[i]!] as const))).toEqual([]);
  });
});
