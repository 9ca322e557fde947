/** The workflows, forms and release notes: each names only scripts and files that exist. */
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";

const ROOT = new URL("../", import.meta.url);
const read = (path: string) => readFileSync(new URL(path, ROOT), "utf8");
const manifest = JSON.parse(read("package.json"));

interface Step {
  readonly uses?: string;
  readonly run?: string;
}
interface Job {
  readonly "runs-on": string;
  readonly "timeout-minutes": number;
  readonly strategy?: { readonly matrix: Readonly<Record<string, readonly unknown[]>> };
  readonly steps: readonly Step[];
}
interface Workflow {
  readonly name: string;
  readonly on: unknown;
  readonly permissions: unknown;
  readonly jobs: Readonly<Record<string, Job>>;
}

const WORKFLOWS = readdirSync(new URL(".github/workflows/", ROOT));
const FORMS = readdirSync(new URL(".github/ISSUE_TEMPLATE/", ROOT)).filter((name) => name !== "config.yml");

/** What a shell line calls that this repository does not have. */
function missingIn(line: string): string[] {
  const script = /\bnpm (?:run )?(?:-s )?([\w:]+)/.exec(line)?.[1];
  const isCommand = script === undefined || ["publish", "ci", "install"].includes(script);
  const files = [...line.matchAll(/\b(?:node|bash) ([^\s-]\S*)/g)].map(([, file]) => file!);
  return [
    ...(isCommand || Object.hasOwn(manifest.scripts, script) ? [] : [`npm script ${script}`]),
    ...files.filter((file) => !existsSync(new URL(file, ROOT))),
  ];
}

test.each([
  ["npm run check && npm test", []],
  ["npm run trian", ["npm script trian"]],
  ["sudo node scripts/none.mjs --all", ["scripts/none.mjs"]],
  ["bash .ci/run", []],
])("a line that calls what is missing is found: %s", (line, missing) => {
  expect(missingIn(line)).toEqual(missing);
});

describe.each(WORKFLOWS)("%s", (name) => {
  const workflow: Workflow = parse(read(`.github/workflows/${name}`));

  test("has jobs with a limit of time and steps that exist", () => {
    expect(workflow).toMatchObject({ name: name.replace(".yml", ""), permissions: expect.anything() });
    expect(workflow.on).toBeDefined();
    for (const job of Object.values(workflow.jobs)) {
      expect(job["runs-on"]).toBeTruthy();
      expect(job["timeout-minutes"]).toBeGreaterThan(0);
      expect(job.steps[0]).toEqual({ uses: "actions/checkout@v4" });
      for (const { uses, run } of job.steps) {
        expect(uses === undefined).not.toBe(run === undefined);
        if (uses) expect(uses).toMatch(/^[\w-]+\/[\w-]+@v\d+$/);
        if (run) expect(run.split("\n").flatMap(missingIn)).toEqual([]);
      }
    }
  });

  test("names the values of its matrices and one version of Deno", () => {
    for (const { strategy, ...job } of Object.values(workflow.jobs)) {
      const used = [...JSON.stringify(job).matchAll(/\$\{\{ matrix\.(\w+) \}\}/g)].map(([, key]) => key!);
      expect(new Set(used)).toEqual(new Set(Object.keys(strategy?.matrix ?? {})));
    }
    const versions = (text: string) => [...text.matchAll(/deno@([\d.]+)/g)].map(([, version]) => version);
    for (const version of versions(JSON.stringify(workflow))) expect(versions(read(".ci/run"))).toContain(version);
  });
});

test("the workflows run the whole of CI, every supported version of Node, and three systems", () => {
  const { jobs }: Workflow = parse(read(".github/workflows/ci.yml"));
  const text = JSON.stringify(jobs);
  expect(jobs.linux!.steps.at(-1)).toEqual({ run: "bash .ci/run" });
  expect(text).toContain(`"node-version":"${manifest.engines.node.replace(">=", "")}.0"`);
  expect(jobs.node!.strategy!.matrix.node).toEqual([22, 24]);
  expect(jobs.systems!.strategy!.matrix.system).toEqual([
    expect.stringMatching(/^macos/),
    expect.stringMatching(/^windows/),
  ]);
});

test.each(FORMS)("the form %s has fields with labels", (name) => {
  const form = parse(read(`.github/ISSUE_TEMPLATE/${name}`));
  expect(form).toMatchObject({ name: expect.any(String), description: expect.any(String) });
  const ids = form.body.map(({ id }: { id: string }) => id);
  expect(new Set(ids).size).toBe(ids.length);
  for (const { type, attributes } of form.body) {
    expect(["textarea", "input", "dropdown", "checkboxes"]).toContain(type);
    expect(attributes.label).toEqual(expect.any(String));
  }
});

test("what .ci/run installs has a version, and what it runs exists", () => {
  const lines = read(".ci/run").replaceAll("\\\n", " ").split("\n");
  const installs = lines.filter((line) => /pip (install|download)|npx --yes/.test(line));
  expect(installs.length).toBeGreaterThan(5);
  for (const line of installs) {
    const packages = line
      .replace(/.*(pip (install|download)|npx --yes)/, "")
      .split(/ 2>|[;)]/)[0]!
      .split(/\s+/);
    const named = packages.filter((word) => /^"?[a-z][\w-]*(\[\w+\])?([=@]|$)/.test(word) && !/^\.?cache/.test(word));
    expect(named, line).not.toEqual([]);
    for (const name of named) expect(name, line).toMatch(/==[\d$]|@\d/);
  }
  expect(lines.flatMap(missingIn)).toEqual([]);
});

test("the release notes are the section of the version, and another tag is refused", () => {
  const script = fileURLToPath(new URL("scripts/release_notes.mjs", ROOT));
  const notes = execFileSync(process.execPath, [script, `v${manifest.version}`], { encoding: "utf8" });
  expect(notes).toMatch(/^### Added\n- /);
  expect(notes).not.toContain("## [");
  const refused = spawnSync(process.execPath, [script, "v9.9.9"], { encoding: "utf8" });
  expect([refused.status, refused.stdout]).toEqual([1, ""]);
  expect(refused.stderr).toContain(`package.json has the version ${manifest.version}`);
});
