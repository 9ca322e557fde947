/** The workflows, forms and release notes: each names only scripts and files that exist. */
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { LONGEST_TESTS, NIGHTLY_TESTS, SLOW_TESTS } from "../vitest.slow.ts";
import { temporaryFolder } from "./fixtures/folder.ts";

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
    for (const version of versions(JSON.stringify(workflow))) expect(versions(read(".ci/steps.sh"))).toContain(version);
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

const SCRIPTS = [".ci/run", ".ci/steps.sh", ".ci/peers.sh", "scripts/nightly"];
const scriptLines = SCRIPTS.flatMap((path) => read(path).replaceAll("\\\n", " ").split("\n"));

test("what CI and the nightly script install has a version, and what they run exists", () => {
  const installs = scriptLines.filter((line) => /pip (install|download)|npx --yes|^ *environment \S+ /.test(line));
  const packages = installs.flatMap((line) =>
    line
      .replace(/.*(pip (install|download)|npx --yes|environment \S+)/, "")
      .split(/ 2>|[;)]|&&/)[0]!
      .split(/\s+/)
      .filter((word) => /^"?[a-z][\w-]*(\[\w+\])?([=@]|"?$)/.test(word) && !/^\.?cache/.test(word)),
  );
  expect(packages.length).toBeGreaterThan(10);
  for (const name of packages) expect(name).toMatch(/==[\d$]|@\d/);
  expect(scriptLines.flatMap(missingIn)).toEqual([]);
});

test("each long test is in one list and exists", () => {
  const listed = [...SLOW_TESTS, ...NIGHTLY_TESTS];
  expect(listed.filter((path) => !existsSync(new URL(path, ROOT)))).toEqual([]);
  expect(new Set(listed).size).toBe(listed.length);
  expect(LONGEST_TESTS.filter((path) => !SLOW_TESTS.includes(path))).toEqual([]);
});

describe("counts of test runs", () => {
  const dir = temporaryFolder("report");
  const script = fileURLToPath(new URL("scripts/report.mjs", ROOT));
  const run = (...words: string[]) =>
    execFileSync(process.execPath, [script, ...words], { encoding: "utf8", stdio: "pipe" });

  test("failed tests are named with their reason, files that cannot be loaded too", () => {
    const [report, failed] = [join(dir, "report.json"), join(dir, "failed.txt")];
    const assertionResults = [
      { status: "passed", fullName: "a", failureMessages: [] },
      { status: "failed", fullName: "b", failureMessages: ["Error: no\n  at x"] },
    ];
    const testResults = [
      { name: join(process.cwd(), "test/one_test.ts"), assertionResults },
      { name: join(process.cwd(), "test/two_test.ts"), assertionResults: [], message: "SyntaxError: x\nmore" },
    ];
    const totals = { numPassedTests: 1, numFailedTests: 1, numPendingTests: 2, numTodoTests: 1 };
    writeFileSync(report, JSON.stringify({ ...totals, testResults }));
    expect(run(report, failed)).toBe("1 1 3\n");
    expect(readFileSync(failed, "utf8")).toBe("test/one_test.ts > b: Error: no\ntest/two_test.ts: SyntaxError: x\n");
  });

  test("the nightly parts say when they ran", () => {
    const recorded = JSON.parse(read("test/nightly.json"));
    const said = run("--nightly");
    for (const [part, { date, passed }] of Object.entries<{ date: string; passed: number }>(recorded))
      expect(said).toMatch(new RegExp(`nightly, ${part}: ${date} at \\w+ \\(.*\\): ${passed} passed`));
    const parts = scriptLines.flatMap((line) => /^part "([^"]+)"/.exec(line)?.[1] ?? []);
    expect(Object.keys(recorded).sort()).toEqual(parts.sort());
  });
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
