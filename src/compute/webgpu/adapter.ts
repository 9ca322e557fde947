/** Finds a WebGPU implementation: the host's, the runtime's or Dawn from the `webgpu` package. */

/** Threads of Mesa's software GPU. More threads than cores measured faster, because its workers wait for each other. */
const SOFTWARE_GPU_THREADS = "4";

interface Runtime {
  readonly process?: { readonly env: Record<string, string | undefined> };
  readonly navigator?: { readonly gpu?: GPU };
  readonly Deno?: unknown;
}

/** Kept for the life of the process: Dawn frees its instance with this object, even under work in flight. */
let dawnGpu: Promise<GPU | undefined> | undefined;

/** The best WebGPU implementation; undefined when there is none. */
export async function findGpu(injected?: GPU): Promise<GPU | undefined> {
  if (injected) return injected;
  const runtime = globalThis as unknown as Runtime;
  // Deno's WebGPU polls about every 10 ms, so Dawn comes first there.
  if (runtime.Deno) return (await loadDawn()) ?? runtime.navigator?.gpu;
  return runtime.navigator?.gpu ?? (await loadDawn());
}

function loadDawn(): Promise<GPU | undefined> {
  dawnGpu ??= createDawn();
  return dawnGpu;
}

async function createDawn(): Promise<GPU | undefined> {
  const runtime = globalThis as unknown as Runtime;
  // Read by Mesa when the driver loads; other drivers ignore it.
  if (runtime.process?.env) runtime.process.env.LP_NUM_THREADS ??= SOFTWARE_GPU_THREADS;
  // The names are variables so that bundlers for a page leave the package out. Deno needs the second where no import
  // map of the project's names the package.
  for (const name of runtime.Deno ? ["webgpu", "npm:webgpu@^0.6.2"] : ["webgpu"]) {
    try {
      const dawn = (await import(/* @vite-ignore */ name)) as { create(flags: string[]): GPU };
      return dawn.create([]);
    } catch {
      // Not installed, or not built for this machine.
    }
  }
  return undefined;
}
