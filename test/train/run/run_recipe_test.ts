import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { RunIo } from "../../../src/train/run/io.ts";
import { RECIPES } from "../../../src/train/run/recipes.ts";
import { withOpened } from "../../../src/train/run/run_recipe.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const dir = temporaryFolder("run-recipe");

/** A program without a terminal, whose run may be interrupted. */
function program(signal = new AbortController().signal): { io: RunIo; said: string[] } {
  const said: string[] = [];
  return {
    io: { err: (text) => void said.push(text), isTerminal: false, color: false, columns: 80, env: {}, signal },
    said,
  };
}

const rows = join(dir, "rows.jsonl");
writeFileSync(rows, Array.from({ length: 8 }, (_, i) => `{"prompt":"${i}+1=","response":"${i + 1}"}\n`).join(""));

const sftOf = (name: string) => ({
  args: [
    "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
    ...["device=cpu", "data.train_batch_size=4", "data.max_length=32", "trainer.total_training_steps=2"],
    ...["trainer.logger=[jsonl]", `data.train_files=${rows}`, `trainer.default_local_dir=${join(dir, name)}`],
  ],
  imports: [],
});

test("a program makes a run without a view, and gets what it left", async () => {
  const { io, said } = program();
  const { outcome, dir: folder, model, run, command } = await RECIPES.sft(sftOf("whole"), { io });
  expect(outcome).toMatchObject({ isComplete: true, state: { step: 2 } });
  expect(model).toBe(join(folder, "global_step_2"));
  expect(existsSync(join(model!, "model.safetensors"))).toBe(true);
  expect(Object.keys(run.curves.train)).toContain("train/loss");
  expect(command).toEqual(["sample", `sample --model ${model} --prompt "..."`]);
  expect(said).toEqual([]);
});

test("the view is called before the first step and after the last, while the folder is the run's", async () => {
  const { io } = program();
  const seen: string[] = [];
  await RECIPES.sft(sftOf("viewed"), {
    io,
    view: {
      begin: ({ lines, isWatchable }) => {
        seen.push(`${lines.map(([label]) => label)} ${isWatchable} ${existsSync(join(dir, "viewed", "run.json"))}`);
      },
      end: ({ reached, resume }) => {
        seen.push(`${reached.length} ${resume} ${existsSync(join(dir, "viewed", "global_step_2"))}`);
      },
    },
  });
  expect(seen).toEqual(["rows,model,device,run true false", "0 trainer.resume_mode=auto true"]);
});

test("an interrupt that comes before the rows are encoded leaves no folder", async () => {
  const { io } = program(AbortSignal.abort(new Error("enough")));
  await expect(RECIPES.sft(sftOf("none"), { io })).rejects.toThrow("enough");
  expect(existsSync(join(dir, "none"))).toBe(false);
});

test("what a recipe opened is closed last first, all of it, also where opening or closing fails", async () => {
  const closed: string[] = [];
  const recipe = {
    async open(fails: boolean, { onClose }: { onClose: (close: () => unknown) => void }) {
      onClose(() => closed.push("first"));
      onClose(() => {
        closed.push("second");
        throw new Error("cannot close");
      });
      onClose(async () => closed.push("third"));
      if (fails) throw new Error("cannot open");
    },
  };
  const at = { io: program().io, checkpoint: undefined };
  await expect(withOpened(recipe, { data: false, ...at }, async () => {})).rejects.toThrow("cannot close");
  await expect(withOpened(recipe, { data: true, ...at }, async () => {})).rejects.toThrow();
  expect(closed).toEqual(["third", "second", "first", "third", "second", "first"]);
});
