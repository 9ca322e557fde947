/** A server's end, in a process of its own; and its key, which is told nobody. */
import { spawn } from "node:child_process";
import { chmodSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { beforeAll, describe, expect, test } from "vitest";
import type { Io } from "../../src/cli/command.ts";
import { serverKey } from "../../src/cli/commands/serve_key.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const root = temporaryFolder("serve");

describe("a server that is ended behind 600 requests", () => {
  let script: string;
  beforeAll(async () => {
    script = join(root, "child.mjs");
    const source = fileURLToPath(new URL("../fixtures/serve_child.ts", import.meta.url));
    await build({
      entryPoints: [source],
      bundle: true,
      platform: "node",
      format: "esm",
      outfile: script,
      external: ["../../backend/*", "../../compute/*"],
    });
  });

  interface End {
    readonly signals: number;
    readonly saveMs: number;
    readonly kept: boolean;
    readonly status: number;
    readonly fault?: boolean;
  }
  test.each<[string, End]>([
    [
      "an uncaught error stops the server, and the step is saved",
      { signals: 0, saveMs: 300, kept: true, status: 1, fault: true },
    ],
    ["keeps its unsaved step", { signals: 1, saveMs: 300, kept: true, status: 0 }],
    ["a second signal lets the save end", { signals: 2, saveMs: 300, kept: true, status: 143 }],
    ["a second signal waits no longer than a second", { signals: 2, saveMs: 60_000, kept: false, status: 143 }],
  ])(
    "%s",
    async (name, { signals, saveMs, kept, status, fault }) => {
      const folder = join(root, name.replaceAll(" ", "-"));
      const child = spawn(process.execPath, [script, folder, String(saveMs), ...(fault ? ["fault"] : [])]);
      let said = "";
      const saving = new Promise<void>((resolve) => {
        child.stderr.on("data", (text) => {
          said += text;
          if (/saving unsaved training/.test(said)) resolve();
        });
      });
      const ended = new Promise<number | null>((resolve) => void child.on("close", resolve));
      await Promise.race([new Promise((resolve) => void child.stdout.once("data", resolve)), ended]);
      for (let i = 0; i < signals; i++) {
        if (i > 0) await Promise.race([saving, ended]);
        child.kill("SIGTERM");
      }
      expect(await ended, said).toBe(status);
      if (fault) expect(said).toContain("nobody caught this");
      const [session] = readdirSync(folder).filter((it) => !it.startsWith("."));
      const weights = join(folder, session!, "train-0", "weights");
      const whole = readdirSync(weights).filter((it) => !it.startsWith("."));
      expect(whole).toEqual(kept ? ["unsaved-step-1"] : []);
      // Half of the longest save: a process that waits for it fails.
    },
    30_000,
  );
});

describe("the key", () => {
  const key = (options: Record<string, string>, env: Record<string, string> = {}) => {
    let err = "";
    const write = (text: string) => {
      err += text;
    };
    const io = { env, err: write } as unknown as Io;
    return serverKey({ host: "127.0.0.1", ...options }, io).then((it) => ({ ...it, err }));
  };

  test("a file that is not there gets a new one, for this user alone, shown once", async () => {
    const file = join(root, "key.txt");
    const made = await key({ apiKeyFile: file });
    expect(made.value).toMatch(/^tml-[\w-]{32}$/);
    expect(made.shown).toBe(made.value);
    expect(statSync(file).mode & 0o777).toBe(0o600);
    const again = await key({ apiKeyFile: file });
    expect(again).toEqual({ value: made.value, shown: `$(cat ${JSON.stringify(file)})`, err: "" });
    expect(readFileSync(file, "utf8").trim()).toBe(made.value);
    chmodSync(file, 0o644);
    expect((await key({ apiKeyFile: file })).err).toContain("chmod 600");
  });

  test("is not shown, wherever it comes from", async () => {
    const title = process.title;
    expect(await key({}, { GRPU_API_KEY: "tml-secret" })).toMatchObject({
      value: "tml-secret",
      shown: "$GRPU_API_KEY",
    });
    expect((await key({ apiKey: "tml-secret" })).shown).toBe("tml-…");
    expect(process.title).not.toContain("tml-secret");
    process.title = title;
    expect(await key({})).toEqual({ value: undefined, shown: "tml-local", err: "" });
  });

  test("that cannot be used is refused without being told", async () => {
    writeFileSync(join(root, "bad.txt"), "hunter2", { mode: 0o600 });
    const wrong = key({ apiKeyFile: join(root, "bad.txt") });
    await expect(wrong).rejects.toThrow(/begin with tml-/);
    await expect(wrong).rejects.not.toThrow(/hunter2/);
    await expect(key({ apiKey: "tml-a", apiKeyFile: "b" })).rejects.toThrow(/not both/);
    await expect(key({ host: "0.0.0.0" })).rejects.toThrow(/Give --api-key-file/);
    await expect(key({ apiKeyFile: join(root, "nowhere", "key") })).rejects.toThrow(/Cannot use the key/);
  });
});
