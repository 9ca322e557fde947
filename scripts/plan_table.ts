/**
 * Writes the tables of docs/memory.md: what fits where, for the published shapes of test/fixtures/published.
 *
 *     npx tsx scripts/plan_table.ts
 */
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { TYPICAL_GPU } from "../src/engine/compute/counting.ts";
import type { LanguageModelOptions } from "../src/engine/model/language_model.ts";
import { openModelShape } from "../src/engine/model/model_shape.ts";
import { type Plan, planRun } from "../src/train/backend/local/plan/plan.ts";
import { DEFAULT_SHAPE } from "../src/train/backend/local/plan/run_shape.ts";

export const MODELS = [
  "SmolLM2-135M",
  "gemma-3-270m",
  "SmolLM2-360M",
  "Qwen2.5-0.5B",
  "Qwen3-0.6B",
  "gemma-3-1b-pt",
  "Llama-3.2-1B",
  "Qwen2.5-1.5B",
  "Qwen3-1.7B",
  "SmolLM3-3B",
  "Qwen2.5-3B",
] as const;
export type ModelName = (typeof MODELS)[number];

const BUDGETS_GIB = [4, 6, 8, 12, 24, 80];
const PAGE = new URL("../docs/memory.md", import.meta.url);
/** 8 prompts of up to 256 tokens, 8 replies of up to 768 tokens to each. */
const SHAPE = { ...DEFAULT_SHAPE, promptTokens: 256, replyTokens: 768 };

/** How a model is trained, and what is tried in turn. */
export const KINDS: Readonly<Record<"adapter" | "whole", readonly LanguageModelOptions[]>> = {
  adapter: [{ lora: { rank: 16 } }, { lora: { rank: 16 }, quantization: "nf4" }],
  whole: [{}],
};

/** The plan of a published shape with the first options that fit, or with the last. */
export async function planOf(
  name: ModelName,
  { budget, tries }: { budget: number; tries: readonly LanguageModelOptions[] },
) {
  const model = await openModelShape(fileURLToPath(new URL(`../test/fixtures/published/${name}`, import.meta.url)));
  let made: { plan: Plan; options: LanguageModelOptions } | undefined;
  for (const options of tries) {
    made = { options, plan: await planRun({ model, options, budget, info: TYPICAL_GPU, shape: SHAPE }) };
    if (made.plan.fits) break;
  }
  return made!;
}

/** One line of a table: a model's plan at each budget. */
export async function tableRow(name: ModelName, kind: keyof typeof KINDS): Promise<string> {
  const cells: string[] = [];
  for (const gib of BUDGETS_GIB) cells.push(cell(await planOf(name, { budget: gib * 2 ** 30, tries: KINDS[kind] })));
  return `| ${[name, ...cells].join(" | ")} |`;
}

function cell({ plan, options }: Awaited<ReturnType<typeof planOf>>): string {
  if (!plan.fits) return "-";
  const base = options.quantization ? `${options.quantization}: ` : "";
  return `${base}${plan.tokensPerPass}${plan.gradientCheckpointing ? "r" : ""}, ${plan.slots}`;
}

async function table(kind: keyof typeof KINDS, names: readonly ModelName[]): Promise<string> {
  const head = ["model", ...BUDGETS_GIB.map((gib) => `${gib} GiB`)];
  const rows: string[] = [];
  for (const name of names) rows.push(await tableRow(name, kind));
  return [`| ${head.join(" | ")} |`, `| ${head.map(() => "---").join(" | ")} |`, ...rows].join("\n");
}

/** The page with new tables after the lines `<!-- KIND -->`. */
async function updated(page: string): Promise<string> {
  let text = page;
  for (const kind of ["adapter", "whole"] as const) {
    const names = kind === "adapter" ? MODELS : MODELS.slice(0, 7);
    const made = await table(kind, names);
    text = text.replace(new RegExp(`(<!-- ${kind} -->\n)(?:\\|.*\n)*`), `$1${made}\n`);
  }
  return text;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeFileSync(PAGE, await updated(readFileSync(PAGE, "utf8")));
