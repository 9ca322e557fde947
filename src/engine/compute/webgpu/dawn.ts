/** Dawn from the `webgpu` package: how it is loaded, and the flags that select its adapter. */
import type { Gpu } from "./types.ts";

/** Threads of Mesa's software GPU. More threads than cores measured faster, because its workers wait for each other. */
const SOFTWARE_GPU_THREADS = "4";

interface Runtime {
  readonly process?: { readonly env: Record<string, string | undefined> };
  readonly Deno?: unknown;
}

interface Dawn {
  create(flags: readonly string[]): Gpu;
}

let loading: Promise<Dawn | undefined> | undefined;
/**
 * Instances by their flags. Kept for the life of the process: Dawn frees an instance with its object, even under work
 * in flight.
 */
const instances = new Map<string, Gpu>();

/** An instance with these flags; undefined where the package is not installed, or not built for this machine. */
export async function openDawn(flags: readonly string[]): Promise<Gpu | undefined> {
  loading ??= loadDawn();
  const dawn = await loading;
  const key = flags.join(" ");
  const gpu = instances.get(key) ?? dawn?.create(flags);
  if (gpu) instances.set(key, gpu);
  return gpu;
}

async function loadDawn(): Promise<Dawn | undefined> {
  const runtime = globalThis as unknown as Runtime;
  // Read by Mesa when the driver loads; other drivers ignore it.
  if (runtime.process?.env) runtime.process.env.LP_NUM_THREADS ??= SOFTWARE_GPU_THREADS;
  // The names are variables so that bundlers for a page leave the package out. Deno needs the second where no import
  // map of the project's names the package.
  for (const name of runtime.Deno ? ["webgpu", "npm:webgpu@^0.6.2"] : ["webgpu"]) {
    try {
      return (await import(/* @vite-ignore */ name)) as Dawn;
    } catch {
      // Not installed, or not built for this machine.
    }
  }
  return undefined;
}

/** An adapter as Dawn names it. */
export interface AdapterName {
  readonly name: string;
  readonly backend: string;
}

/** Rounds timestamps to 0.1 ms, against pages that spy; kernels are shorter than that. */
const ALWAYS_DISABLED = ["timestamp_quantization"];

/** The flags that choose. A toggle with a leading `-` is disabled. */
export function dawnFlags(chosen: Partial<AdapterName>, toggles: readonly string[]): string[] {
  const enabled = toggles.filter((name) => !name.startsWith("-"));
  const turnedOff = toggles.filter((name) => name.startsWith("-")).map((name) => name.slice(1));
  const disabled = [...ALWAYS_DISABLED.filter((name) => !toggles.includes(name)), ...turnedOff];
  return [
    chosen.backend ? `backend=${chosen.backend}` : "",
    chosen.name ? `adapter=${chosen.name}` : "",
    enabled.length > 0 ? `enable-dawn-features=${enabled.join(",")}` : "",
    `disable-dawn-features=${disabled.join(",")}`,
  ].filter((flag) => flag !== "");
}

/** No adapter has this name, so that Dawn's error lists those that there are. */
const NOBODY = "\u0001";
const LISTED = /backend: '([^']*)', name: '(.*)'/;

/** Every adapter that Dawn finds, in its order; undefined without Dawn. The package has no call for it. */
export async function dawnAdapters(backend?: string): Promise<AdapterName[] | undefined> {
  try {
    const gpu = await openDawn(dawnFlags({ backend, name: NOBODY } as AdapterName, []));
    if (!gpu) return undefined;
    await gpu.requestAdapter();
    return [];
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    return text.split("\n").flatMap((line) => {
      const [, found, name] = LISTED.exec(line) ?? [];
      return found !== undefined && name !== undefined ? [{ backend: found, name }] : [];
    });
  }
}
