/** How much memory an adapter has, in the platform's own words. WebGPU does not tell. */
import { nodeModule } from "../../../leaves/node_module.ts";
import { formatBytes } from "../memory.ts";
import { budgetOf, type MainMemory, type MemoryBudget, mainMemory, mainMemoryBudget } from "./machine.ts";

/** WebGPU's description of an adapter (`GPUAdapterInfo`), as far as it is needed here. */
export interface AdapterWords {
  readonly vendor: string;
  readonly architecture: string;
  /** The adapter's name in lower case, with dashes. */
  readonly device: string;
  /** A driver that computes on the CPU. */
  readonly isSoftware: boolean;
}

/** Questions about the system; tests give their own answers. */
export interface SystemProbe {
  readonly platform: string;
  readonly memory: MainMemory;
  /** Undefined where there is no such file. */
  readText(path: string): string | undefined;
  /** Empty where there is no such folder. */
  list(folder: string): readonly string[];
  /** Returns the output of a program; undefined when it is missing, fails or takes too long. */
  run(program: string, args: readonly string[]): Promise<string | undefined>;
}

/**
 * The budget of an adapter by what the platform says of it: main memory for software adapters and GPUs without their own,
 * nvidia-smi, Linux' amdgpu, macOS.
 * @returns undefined when nothing says it
 */
export async function askPlatform(adapter: AdapterWords, system: SystemProbe): Promise<MemoryBudget | undefined> {
  if (adapter.isSoftware || isIntegratedIntel(adapter)) return mainMemoryBudget(system.memory);
  if (adapter.vendor === "nvidia") return nvidia(adapter, system);
  if (adapter.vendor === "amd" && system.platform === "linux") return amd(system);
  if (adapter.vendor === "apple" && system.platform === "darwin") return apple(system);
  return undefined;
}

/**
 * Share reserved for the display, other programs, and what the driver takes besides buffers: pipelines, staging memory,
 * page tables.
 */
const RESERVED_SHARE = 1 / 16;
const LEAST_RESERVED_BYTES = 512 * 2 ** 20;

function ofOwnMemory({ total, free }: { total: number; free: number }, who: string): MemoryBudget {
  const reserve = Math.max(total * RESERVED_SHARE, LEAST_RESERVED_BYTES);
  return budgetOf(
    free - reserve,
    `${who}: ${formatBytes(free)} of ${formatBytes(total)} are free, ${formatBytes(reserve)} stay reserved`,
  );
}

const MIB = 2 ** 20;

async function nvidia(adapter: AdapterWords, system: SystemProbe): Promise<MemoryBudget | undefined> {
  const query = ["--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"];
  const text = await system.run("nvidia-smi", query);
  const rows = (text ?? "").split("\n").flatMap((line) => {
    const [name = "", total, free] = line.split(",").map((cell) => cell.trim());
    return Number(total) > 0 && Number(free) >= 0
      ? [{ name, total: Number(total) * MIB, free: Number(free) * MIB }]
      : [];
  });
  const named = rows.filter(({ name }) => adapter.device !== "" && dashed(name) === dashed(adapter.device));
  const least = leastFree(named.length > 0 ? named : rows);
  return least && ofOwnMemory(least, "nvidia-smi");
}

function dashed(name: string): string {
  return name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

/** The row with the least free memory, because cards of one name cannot be distinguished. */
function leastFree<R extends { readonly free: number }>(rows: readonly R[]): R | undefined {
  return rows.toSorted((a, b) => a.free - b.free)[0];
}

const CARDS = "/sys/class/drm";
/** Less than this is the part of main memory that firmware sets aside for a GPU inside the processor. */
const LEAST_CARD_BYTES = 3 * 2 ** 30;

function amd(system: SystemProbe): MemoryBudget | undefined {
  const cards = system.list(CARDS).filter((name) => /^card\d+$/.test(name));
  const rows = cards.flatMap((name) => {
    const read = (file: string) => Number(system.readText(`${CARDS}/${name}/device/${file}`));
    const total = read("mem_info_vram_total");
    return total > 0 ? [{ total, free: total - (read("mem_info_vram_used") || 0) }] : [];
  });
  const least = leastFree(rows);
  if (!least) return undefined;
  return least.total < LEAST_CARD_BYTES ? mainMemoryBudget(system.memory) : ofOwnMemory(least, "amdgpu");
}

/** Metal recommends two thirds of the memory of small machines and three quarters of large ones. */
const LARGE_MAC_BYTES = 36 * 2 ** 30;

async function apple({ memory, run }: SystemProbe): Promise<MemoryBudget> {
  const set = Number(await run("sysctl", ["-n", "iogpu.wired_limit_mb"]));
  const recommended = memory.total * (memory.total <= LARGE_MAC_BYTES ? 2 / 3 : 3 / 4);
  const total = set > 0 ? set * MIB : recommended;
  return ofOwnMemory({ total, free: total }, set > 0 ? "iogpu.wired_limit_mb" : "Metal's share of main memory");
}

/** Intel's cards are `xe-hpg`, `gen-12-hp` and the like; the rest is inside the processor. */
function isIntegratedIntel({ vendor, architecture }: AdapterWords): boolean {
  return vendor === "intel" && !/hp/i.test(architecture);
}

const ANSWER_LIMIT_MS = 3000;

/** This machine; undefined in a page. */
export function thisSystem(): SystemProbe | undefined {
  const memory = mainMemory();
  if (!memory) return undefined;
  const fs = nodeModule("node:fs");
  return {
    platform: nodeModule("node:os").platform(),
    memory,
    readText: (path) => attempt(() => fs.readFileSync(path, "utf8")),
    list: (folder) => attempt(() => fs.readdirSync(folder)) ?? [],
    run: (program, args) =>
      new Promise((resolve) => {
        const options = { timeout: ANSWER_LIMIT_MS, windowsHide: true };
        nodeModule("node:child_process").execFile(program, args, options, (error, text) =>
          resolve(error ? undefined : String(text)),
        );
      }),
  };
}

function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
