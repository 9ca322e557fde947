/** The byte budget of an adapter, where the user sets none. */
import { type AdapterWords, askPlatform, type SystemProbe, thisSystem } from "./adapter.ts";
import { type MemoryBudget, PAGE_BUDGET } from "./machine.ts";

/**
 * Returns the memory that an adapter allows, with a reserve: what the platform says, else what probing finds. A page
 * gets a fixed, small budget, because it has nothing to ask and must not take a phone's whole memory to find out.
 */
export async function chooseBudget(
  adapter: AdapterWords,
  probe: () => Promise<MemoryBudget>,
  system: SystemProbe | undefined = thisSystem(),
): Promise<MemoryBudget> {
  if (!system) return PAGE_BUDGET;
  return (await askPlatform(adapter, system)) ?? (await probe());
}
