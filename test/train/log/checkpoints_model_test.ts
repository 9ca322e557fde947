/**
 * A run's checkpoints against a simple model of what must be on disk: random sequences of saves, failed saves, crashes,
 * damage and restarts. Whatever happened, the run goes on from the newest whole checkpoint.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";

interface State {
  readonly step: number;
}

interface Kept {
  readonly step: number;
  readonly text: string;
  isDamaged: boolean;
}

type Operation =
  | {
      readonly kind: "save";
      readonly text: string;
      readonly value: number | undefined;
      readonly isTracked: boolean;
    }
  | { readonly kind: "failed save" | "crash" | "find" | "restart" | "lose tracker" }
  | { readonly kind: "damage"; readonly which: number };

const operation: fc.Arbitrary<Operation> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant("save" as const),
      text: fc.string({ minLength: 1, maxLength: 20 }),
      isTracked: fc.boolean(),
      value: fc.option(fc.integer({ min: 0, max: 9 }), { nil: undefined }),
    }),
  },
  {
    weight: 4,
    arbitrary: fc
      .constantFrom("failed save", "crash", "find", "restart", "lose tracker")
      .map((kind) => ({ kind }) as Operation),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("damage" as const), which: fc.nat({ max: 5 }) }) },
);

/** The run and what it must find, in memory. */
class Model {
  readonly kept = new Map<number, Kept>();
  tracked: number | undefined;
  best: { readonly step: number; readonly value: number } | undefined;
  private readonly keep: number;

  constructor(keep: number) {
    this.keep = keep;
  }

  /** Steps in the order in which a restart tries them. */
  private candidates(): number[] {
    const newestFirst = [...this.kept.keys()].sort((a, b) => b - a);
    const { tracked } = this;
    if (tracked === undefined || !this.kept.has(tracked)) return newestFirst;
    return [tracked, ...newestFirst.filter((step) => step !== tracked)];
  }

  /** Undefined: the run starts. "none whole": it is refused. */
  found(): Kept | "none whole" | undefined {
    if (this.kept.size === 0) return undefined;
    const whole = this.candidates().find((step) => !this.kept.get(step)!.isDamaged);
    return whole === undefined ? "none whole" : this.kept.get(whole)!;
  }

  save(it: { step: number; text: string; value: number | undefined }): void {
    this.kept.set(it.step, { step: it.step, text: it.text, isDamaged: false });
    if (it.value !== undefined) this.best = { step: it.step, value: it.value };
    this.tracked = it.step;
    const oldestFirst = [...this.kept.keys()].sort((a, b) => a - b);
    const surplus = oldestFirst.slice(0, Math.max(oldestFirst.length - this.keep, 0));
    for (const step of surplus) if (step !== this.best?.step) this.kept.delete(step);
  }
}

const nameOf = (step: number) => `global_step_${step}`;

async function play(operations: readonly Operation[], keep: number): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), "grpu-checkpoints-"));
  const open = () => new FolderCheckpoints<State>(dir, { resumeMode: "auto", keep });
  const model = new Model(keep);
  let store = open();
  // Names are not in the order of their letters here.
  let step = 7;
  let isDamaged = false;
  try {
    for (const operation of operations) {
      if (operation.kind === "save") {
        step++;
        const { text, value, isTracked } = operation;
        const before = model.tracked;
        const best = value === undefined ? undefined : { metric: "val/x", value };
        const write = async (to: string) => writeFileSync(join(to, "weights"), text);
        await store.save(nameOf(step), { state: { step }, write, ...(best && { best }) });
        model.save({ step, text, value });
        if (!isTracked && before !== undefined) {
          // A crash between the checkpoint's own name and the file that names the newest.
          writeFileSync(join(dir, "latest_checkpointed_iteration.txt"), `${before}\n`);
          model.tracked = before;
        }
      } else if (operation.kind === "failed save") {
        const write = async (to: string) => {
          writeFileSync(join(to, "weights"), "half");
          throw new Error("the backend failed");
        };
        await expect(store.save(nameOf(step + 1), { state: { step: step + 1 }, write })).rejects.toThrow("backend");
      } else if (operation.kind === "crash") {
        // What a killed process leaves of a checkpoint that it was writing.
        const unfinished = join(dir, `.writing-${nameOf(step + 1)}`);
        mkdirSync(unfinished, { recursive: true });
        writeFileSync(join(unfinished, "weights"), "half");
      } else if (operation.kind === "lose tracker") {
        rmSync(join(dir, "latest_checkpointed_iteration.txt"), { force: true });
        model.tracked = undefined;
      } else if (operation.kind === "damage") {
        const steps = [...model.kept.keys()];
        const chosen = steps[operation.which % Math.max(steps.length, 1)];
        if (chosen === undefined) continue;
        writeFileSync(join(dir, nameOf(chosen), "weights"), "something longer than any text that was written");
        model.kept.get(chosen)!.isDamaged = true;
        isDamaged = true;
      } else {
        // A store answers from memory what it has found before.
        if (operation.kind === "find" && isDamaged) continue;
        if (operation.kind === "restart") store = open();
        isDamaged = false;
        const expected = model.found();
        if (expected === "none whole") {
          await expect(store.find()).rejects.toThrow(/no checkpoint in the folder is whole|none of .* is whole/i);
          if (operation.kind === "restart") return;
          continue;
        }
        const found = await store.find();
        expect(found?.state.step).toBe(expected?.step);
        if (found) expect(readFileSync(join(found.dir, "weights"), "utf8")).toBe(expected!.text);
        if (operation.kind === "restart") step = expected?.step ?? 7;
      }
      const names = readdirSync(dir).filter((name) => name.startsWith("global_step_"));
      expect(new Set(names)).toEqual(new Set([...model.kept.keys()].map(nameOf)));
      const best = model.best && model.kept.has(model.best.step) ? model.best : undefined;
      expect((await store.best())?.checkpoint).toBe(best && nameOf(best.step));
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

test("a run goes on from the newest whole checkpoint, whatever happened before", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(operation, { minLength: 6, maxLength: 18 }), fc.integer({ min: 1, max: 4 }), play),
    { numRuns: 60, seed: 20261122 },
  );
});
