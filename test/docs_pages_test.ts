/**
 * Runs every block of the pages in docs/: commands through the command line, modules and programs as they stand, all of
 * them type-checked. docs/limits.md, where each block has its own expectation, is run by docs_test.ts.
 */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { chromium } from "playwright-core";
import { beforeAll, describe, expect, test } from "vitest";
import { estimatorNames, lossNames } from "../src/engine/algorithm/mod.ts";
import { FakeDashboard } from "./cluster/ray/fake_dashboard.ts";
import { startTypeScriptAgent } from "./fixtures/agent_process.ts";
import { grpu } from "./fixtures/cli.ts";
import { temporaryFolder } from "./fixtures/folder.ts";
import { hasShared, sharedPath } from "./fixtures/shared.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const MODEL = sharedPath("models/stories260k");

interface Block {
  readonly language: string;
  readonly file: string | undefined;
  readonly text: string;
}

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const PAGES = readdirSync(join(ROOT, "docs")).filter((name) => name.endsWith(".md"));
const textOf = (page: string) => readFileSync(join(ROOT, "docs", page), "utf8");

function blocksOf(page: string): Block[] {
  const found = textOf(page).matchAll(/^```(\w+) ?(\S+)?\n([\s\S]*?)^```$/gm);
  return [...found].map(([, language, file, text]) => ({ language: language!, file, text: text! }));
}

/** Makes a run of seconds of any configuration. */
const SMALL = [
  "rllm.data.train_batch_size=4",
  "rllm.rollout.n=2",
  "rllm.trainer.total_batches=1",
  "rllm.trainer.val_before_train=false",
  "rllm.trainer.test_freq=0",
  "training.max_untrained_steps=0",
];
const SMALL_MODEL = [
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
  "warmup.steps=2",
];

const SMALL_SFT = ["data.train_batch_size=2", "trainer.total_training_steps=1", "trainer.val_before_train=false"];

const dir = temporaryFolder("docs");
let run: string;
beforeAll(async () => {
  run = join(dir, "run");
  for (const page of PAGES) {
    for (const { file, text } of blocksOf(page)) if (file) writeFileSync(join(dir, file), text);
  }
  const folder = `training.default_local_dir=${run}`;
  const made = await grpu([
    ...["train", "examples/arithmetic/run.yaml", "warmup.steps=0", ...SMALL, folder],
    ...["--device", "cpu"],
  ]);
  expect(made.code, made.err).toBe(0);
});

/** A shell's words: quotes keep what is inside together. */
function words(line: string): string[] {
  return [...line.matchAll(/(?:'[^']*'|"[^"]*"|[^\s'"])+/g)].map(([word]) => word.replaceAll(/['"]/g, ""));
}

/** A page's words with its files, its model and its run in place. */
function placed(word: string): string {
  return word
    .replace(/^(.*=)?(\w+\.(?:ts|yaml|jsonl|db))$/, (_, key = "", file) => key + join(dir, file))
    .replace(/^(exported|gguf)$/, (name) => join(dir, name))
    .replace(/\bDIR\b/, MODEL)
    .replace(/\bRUN\b/, run);
}

/** What names a model folder needs one. */
const canRun = (text: string) => hasShared || !/\bDIR\b/.test(text);

let runs = 0;
async function runCommand(command: string): Promise<void> {
  const [program, ...args] = words(command).map(placed);
  expect(program).toBe("grpu");
  const folder = join(dir, `run_${runs++}`);
  const stop = new AbortController();
  const isTraining = args[0] === "train";
  const isNew = isTraining && !command.includes("DIR");
  const isSft = ["sft", "dpo", "reward-model"].includes(args[0]!);
  const isNewSft = isSft && /examples\/(sft|dpo|reward_model)\//.test(command);
  const sft = [...SMALL_SFT, ...(isNewSft ? SMALL_MODEL.slice(0, 1) : []), `trainer.default_local_dir=${folder}`];
  const more = isTraining ? [...SMALL, ...(isNew ? SMALL_MODEL : []), `training.default_local_dir=${folder}`] : [];
  const device = isTraining || isSft || args[0] === "eval" || args[0] === "sample" ? ["--device", "cpu"] : [];
  const fresh = args[0] === "eval" ? ["--no-cache"] : [];
  const agent = command.includes("remote_agent") ? await startTypeScriptAgent() : undefined;
  const remote = agent ? [`task.agent=${agent.url}`, "rllm.sdk.proxy.port=0"] : [];
  // The page's own settings come last: they are what it shows.
  const [name, config] = args;
  const own = args.slice(2);
  const trained = isTraining ? [name!, config!, ...more, ...remote, ...own] : args;
  const line = isSft ? [name!, config!, ...sft, ...own] : trained;
  const cluster = name === "jobs" ? await new FakeDashboard().listen() : undefined;
  cluster?.addJob("sum-1", { status: "SUCCEEDED", log: "done\n" });
  const { code, err } = await grpu([...line, ...device, ...fresh], {
    signal: stop.signal,
    ...(cluster && { env: { RAY_ADDRESS: cluster.address }, clock: cluster.clock }),
    ...(args[0] === "serve" && { out: stopAt(stop), err: stopAt(stop) }),
  }).finally(() => {
    agent?.child.kill();
    void cluster?.close();
  });
  expect(code, err).toBe(0);
  if (isTraining || isSft) expect(readFileSync(join(folder, "metrics.jsonl"), "utf8")).toContain('"phase":"train"');
}

/** Ends a server as soon as it has printed its address. */
function stopAt(stop: AbortController): (text: string) => void {
  return (text) => {
    if (text.includes("http://")) stop.abort();
  };
}

describe.each(PAGES.filter((page) => page !== "limits.md"))("%s", (page) => {
  const blocks = blocksOf(page);
  const commands = blocks.filter(({ language }) => language === "sh").flatMap(({ text }) => text.trim().split("\n"));

  test.skipIf(commands.length === 0).each(commands.filter(canRun))("%s", async (command) => {
    await runCommand(command);
  });

  const programs = blocks.filter(({ language, file }) => language === "ts" && file === undefined);
  test.skipIf(programs.length === 0).each(programs.filter(({ text }) => canRun(text)))(
    "the program $text runs",
    async ({ text }) => {
      const folder = mkdtempSync(join(ROOT, "test", "docs-"));
      mkdirSync(join(folder, "out"));
      try {
        const file = join(folder, "program.ts");
        const source = text.replaceAll(/\bDIR\b/g, MODEL).replaceAll(/\bOUT\b/g, join(folder, "out"));
        writeFileSync(file, source);
        await import(file);
      } finally {
        rmSync(folder, { recursive: true });
      }
    },
  );

  test("every block has a language that is run or read, and every module a command", () => {
    for (const { language, file, text } of blocks) {
      expect(["sh", "ts", "json", "yaml", "python", "html"], text).toContain(language);
      if (language === "ts" && file && file !== "page.ts")
        expect(
          commands.some((command) => command.includes(file)),
          file,
        ).toBe(true);
    }
  });
});

test("the modules and programs of all pages have no type errors", () => {
  const folder = mkdtempSync(join(ROOT, "test", "docs-types-"));
  try {
    const blocks = PAGES.flatMap((page) => blocksOf(page).map((block) => ({ page, ...block })));
    const typed = blocks.filter(({ language, page }) => language === "ts" && page !== "limits.md");
    typed.forEach(({ text }, i) => {
      writeFileSync(join(folder, `block_${i}.ts`), `${text}\nexport {};\n`);
    });
    const { imports } = JSON.parse(readFileSync(join(ROOT, "deno.json"), "utf8"));
    const own = Object.entries<string>(imports).filter(([name]) => /^grpu\b/.test(name));
    const paths = Object.fromEntries(own.map(([name, path]) => [name, [join(ROOT, path)]]));
    const options = { noEmit: true, paths, rootDir: "../..", lib: ["esnext", "dom"] };
    const config = { extends: "../../tsconfig.json", compilerOptions: options, include: ["*.ts"] };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(config));
    const compiler = join(ROOT, "node_modules", "typescript", "bin", "tsc");
    execFileSync(process.execPath, [compiler, "-p", folder], { encoding: "utf8" });
  } catch (error) {
    expect.fail((error as { stdout?: string }).stdout ?? String(error));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

describe.skipIf(!CHROMIUM || "Deno" in globalThis)("the page of library.md", () => {
  test("computes advantages in headless Chromium, bundled as the page says", {
    timeout: 60_000,
  }, async () => {
    await build({
      entryPoints: [join(dir, "page.ts")],
      outfile: join(dir, "page.js"),
      bundle: true,
      format: "esm",
      logLevel: "silent",
      // As an installed package: through package.json's exports.
      nodePaths: [join(ROOT, "node_modules")],
      plugins: [
        {
          name: "grpu",
          setup: (it) => it.onResolve({ filter: /^grpu/ }, ({ path }) => ({ path: doorOf(path) })),
        },
      ],
    });
    const server = createServer(({ url }, reply) => {
      const isScript = url === "/page.js";
      reply.setHeader("content-type", isScript ? "text/javascript" : "text/html");
      reply.end(readFileSync(join(dir, isScript ? "page.js" : "index.html")));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const args = [
      "--no-sandbox",
      "--enable-unsafe-webgpu",
      "--use-webgpu-adapter=swiftshader",
      "--enable-unsafe-swiftshader",
    ];
    const browser = await chromium.launch({ executablePath: CHROMIUM!, args });
    try {
      const page = await browser.newPage();
      await page.goto(`http://localhost:${(server.address() as AddressInfo).port}/`);
      await page.waitForFunction('document.body.textContent.includes(":")');
      expect(await page.textContent("body")).toContain("webgpu: 0.707,0.707,-0.707");
    } finally {
      await browser.close();
      server.close();
    }
  });
});

/** The compiled file behind a door of the package. */
function doorOf(name: string): string {
  const { exports } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  return join(ROOT, exports[name.replace(/^grpu/, ".")].default);
}

test("the index names every page", () => {
  const index = textOf("README.md");
  for (const page of PAGES.filter((name) => name !== "README.md")) expect(index).toContain(`(${page})`);
});

test("the pages of estimators and losses name every estimator and every loss", () => {
  const text = `${textOf("estimators.md")}\n${textOf("losses.md")}`.replaceAll(/^```[\s\S]*?^```$/gm, "");
  const named = new Set([...text.matchAll(/`([^`]+)`/g)].map(([, name]) => name));
  const withPrefix = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"].map((it) => `tinker.${it}`);
  const missing = [...estimatorNames(), ...lossNames()].filter((it) => !named.has(it) && !withPrefix.includes(it));
  expect(missing).toEqual([]);
});

test("links between pages lead somewhere", () => {
  for (const page of PAGES) {
    for (const [, target] of textOf(page).matchAll(/\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)/g)) {
      expect(() => readFileSync(join(ROOT, "docs", target!)), `${page}: ${target}`).not.toThrow();
    }
  }
});
