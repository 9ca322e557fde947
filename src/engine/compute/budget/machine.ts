/** The machine's main memory, and what a device that lies in it may take. */
import { nodeModule } from "../../../leaves/node_module.ts";
import { formatBytes } from "../memory.ts";

/** How many bytes live buffers may hold, and where the figure comes from. */
export interface MemoryBudget {
  readonly bytes: number;
  /** Source for people: `half of 24 GiB of main memory`. */
  readonly source: string;
}

/** The user's own figure. */
export function statedBudget(bytes: number): MemoryBudget {
  return { bytes, source: "memory_budget_bytes" };
}

/** Bytes. `total` and `available` respect the limit of a control group. */
export interface MainMemory {
  readonly total: number;
  readonly available: number;
}

interface Runtime {
  readonly process?: {
    readonly versions?: object;
    readonly constrainedMemory?: () => number;
    readonly availableMemory?: () => number;
  };
}

/** Undefined in a page, and where this process may not ask (Deno without permission). */
export function mainMemory(): MainMemory | undefined {
  const { process } = globalThis as unknown as Runtime;
  if (!process?.versions) return undefined;
  try {
    return ask(process);
  } catch {
    return undefined;
  }
}

function ask(process: NonNullable<Runtime["process"]>): MainMemory {
  const { totalmem, freemem } = nodeModule("node:os");
  // Without a control group the limit is 0 or beyond any machine's memory.
  const limit = process.constrainedMemory?.() || Number.POSITIVE_INFINITY;
  const total = Math.min(totalmem(), limit);
  return { total, available: Math.min(process.availableMemory?.() ?? freemem(), total) };
}

/** Share of the total that is taken; the rest is for this process, the driver and other programs. */
const SHARE_OF_TOTAL = 1 / 2;
/** Largest share of what is available now, so that a busy machine does not swap. */
const SHARE_OF_AVAILABLE = 3 / 4;

/** A device in main memory (`cpu`, a software GPU, a GPU without memory of its own). */
export function mainMemoryBudget(memory: MainMemory | undefined = mainMemory()): MemoryBudget {
  if (!memory) return PAGE_BUDGET;
  const share = memory.total * SHARE_OF_TOTAL;
  const free = memory.available * SHARE_OF_AVAILABLE;
  if (share <= free) return budgetOf(share, `half of ${formatBytes(memory.total)} of main memory`);
  return budgetOf(free, `three quarters of the ${formatBytes(memory.available)} of main memory that are available`);
}

/** A page cannot ask; phones and small laptops run pages too. */
export const PAGE_BUDGET: MemoryBudget = {
  bytes: 2 * 2 ** 30,
  source: "the default where the memory cannot be asked for, as in a page",
};

/** Figures of a machine in use differ by a little each time; steps let two runs have the same budget. */
const STEP_BYTES = 256 * 2 ** 20;
const LEAST_BYTES = 64 * 2 ** 20;

/** Whole steps of 256 MiB; what is less than one stays as it is. */
export function budgetOf(bytes: number, source: string): MemoryBudget {
  const whole = Math.floor(bytes / STEP_BYTES) * STEP_BYTES || Math.floor(bytes);
  return { bytes: Math.max(whole, LEAST_BYTES), source };
}
