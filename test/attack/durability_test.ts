/** What a checkpoint survives: the end of the process in the middle of overwriting it, and a disk that is full. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { attack } from "./attacked.ts";
import { Client } from "./client.ts";

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "grpu-durable-"));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const WEIGHT_BYTES = 2 ** 20;

interface Listed {
  readonly tinker_path: string;
  readonly size_bytes: number;
}

/** The steps that the checkpoint's record and its weights say they are of. */
async function stepsOf(url: string, path: string): Promise<{ weights: number; bytes: number }> {
  const [run, kind, name] = path.replace("tinker://", "").split("/");
  const archive = await fetch(`${url}/api/v1/training_runs/${run}/checkpoints/${kind}/${name}/archive`);
  const { url: at } = (await archive.json()) as { url: string };
  const tar = Buffer.from(await (await fetch(at)).arrayBuffer());
  return { weights: Number(tar.subarray(512, 532).toString().trim()), bytes: tar.length };
}

test("killed while a checkpoint is overwritten, again and again, a whole one is there each time", async () => {
  let path = "";
  let least = 0;
  for (let kill = 0; kill < 6; kill++) {
    const target = await attack("tinker", { root, weightBytes: WEIGHT_BYTES });
    try {
      if (path !== "") {
        const { checkpoints } = (await (await fetch(`${target.url}/api/v1/checkpoints`)).json()) as {
          checkpoints: Listed[];
        };
        const kept = checkpoints.find((it) => it.tinker_path === path);
        expect(kept?.size_bytes).toBeGreaterThan(2 * WEIGHT_BYTES - 100);
        const { weights, bytes } = await stepsOf(target.url, path);
        expect(bytes).toBeGreaterThan(WEIGHT_BYTES);
        expect(weights).toBeGreaterThanOrEqual(least);
      }
      const client = new Client(target.url);
      const { model } = await client.open();
      let [seq_id, step] = [0, 0];
      const save = async () => {
        await client.result("optim_step", { model_id: model, seq_id: ++seq_id, adam_params: {} });
        step++;
        return client.result("save_weights", {
          model_id: model,
          seq_id: ++seq_id,
          path: "kept",
          overwrite: true,
        });
      };
      path = String((await save()).path);
      least = step;
      const saving = (async () => {
        for (;;) {
          await save();
          least = step;
        }
      })().catch(() => {});
      await new Promise((wake) => setTimeout(wake, 30 + 23 * kill));
      await target.kill();
      await saving;
      least = Math.min(least, step);
    } finally {
      await target.close();
    }
  }
});

test("a write that finds no room is told as the server's failure, and the checkpoint before it stays", async () => {
  const target = await attack("tinker", { root, weightBytes: 100 });
  const { path } = await (async () => {
    const client = new Client(target.url);
    const { model } = await client.open();
    return client.result("save_weights", { model_id: model, seq_id: 1, path: "kept" });
  })();
  await target.close();
  const full = await attack("tinker", { root, weightBytes: WEIGHT_BYTES, fileBlocks: 64 });
  try {
    const client = new Client(full.url);
    const { model } = await client.open();
    const failed = await client.result("save_weights", { model_id: model, seq_id: 1, path: "large" });
    expect(failed).toMatchObject({ category: "server", error: expect.stringMatching(/large|EFBIG/i) });
    const small = await client.result("optim_step", { model_id: model, seq_id: 2, adam_params: {} });
    expect(small.error).toBeUndefined();
    const { checkpoints } = (await (await fetch(`${full.url}/api/v1/checkpoints`)).json()) as {
      checkpoints: Listed[];
    };
    expect(checkpoints.map((it) => it.tinker_path)).toEqual([path]);
    expect([full.ended(), full.errors()]).toEqual([undefined, ""]);
  } finally {
    await full.close();
  }
});
