/** Finds the adapter: of the host's WebGPU, the runtime's or Dawn's; the one asked for, or the fastest. */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { type AdapterName, dawnAdapters, dawnFlags, openDawn } from "./dawn.ts";
import { gpuInfo } from "./info.ts";
import type { Gpu, GpuAdapter } from "./types.ts";

/** Features of a device besides those that every device gets. */
export interface DeviceRequirements {
  /** The features that products by subgroup matrices need. */
  readonly subgroupMatrix?: boolean | undefined;
}

/** Choice of the adapter. Only Dawn (Node, Bun, Deno with the `webgpu` package) takes a choice. */
export interface AdapterChoice {
  /** Part of the adapter's name, in any case, or its place in {@link listAdapters}. Default: the fastest. */
  readonly adapter?: string | number | undefined;
  /** `vulkan`, `metal`, `d3d12`, `d3d11`, `opengl` or `opengles`. Default: the platform's. */
  readonly backend?: string | undefined;
  /** Dawn's toggles, for example `allow_unsafe_apis`; one with a leading `-` is disabled. Dawn ignores unknown names. */
  readonly toggles?: readonly string[] | undefined;
}

interface Runtime {
  readonly navigator?: { readonly gpu?: Gpu };
  readonly Deno?: unknown;
}

/** @throws ConfigError when the choice names no adapter of this machine, UnsupportedError where nothing can be chosen */
export async function findAdapter(injected: Gpu | undefined, choice: AdapterChoice): Promise<GpuAdapter | null> {
  const gpu = isChoice(choice) ? await chosenGpu(injected, choice) : await defaultGpu(injected);
  return (await gpu?.requestAdapter({ powerPreference: "high-performance" })) ?? null;
}

function isChoice({ adapter, backend, toggles = [] }: AdapterChoice): boolean {
  return adapter !== undefined || backend !== undefined || toggles.length > 0;
}

async function defaultGpu(injected?: Gpu): Promise<Gpu | undefined> {
  if (injected) return injected;
  const runtime = globalThis as unknown as Runtime;
  // Deno's WebGPU polls about every 10 ms, so Dawn comes first there.
  if (runtime.Deno) return (await openDawn(dawnFlags({}, []))) ?? runtime.navigator?.gpu;
  return runtime.navigator?.gpu ?? (await openDawn(dawnFlags({}, [])));
}

async function chosenGpu(injected: Gpu | undefined, choice: AdapterChoice): Promise<Gpu | undefined> {
  const { adapter, backend, toggles = [] } = choice;
  const adapters = injected ? undefined : await dawnAdapters();
  if (!adapters)
    throw new UnsupportedError(
      `Cannot choose the adapter (${written(choice)}): this runtime's WebGPU takes no choice, only the \`webgpu\` package does. Leave device.adapter, device.backend and device.toggles unset.`,
      { part: "compute", capability: "device.adapter" },
    );
  if (adapter !== undefined) return openDawn(dawnFlags(chosenAdapter(adapters, choice), toggles));
  if (backend !== undefined && (await dawnAdapters(backend))!.length === 0) throw noneSuch(choice, adapters);
  return openDawn(dawnFlags({ backend: backend ?? "" }, toggles));
}

/**
 * The adapter that a choice means.
 * @throws ConfigError for none; UnsupportedError for one that Dawn cannot be made to take
 */
export function chosenAdapter(adapters: readonly AdapterName[], choice: AdapterChoice): AdapterName {
  const { adapter, backend } = choice;
  const fitting = adapters.filter((adapter) => backend === undefined || adapter.backend === backend);
  const isNamed = ({ name }: AdapterName) => name.toLowerCase().includes(String(adapter).toLowerCase());
  // A larger number is a part of a name: 4090.
  const isIndex = /^\d+$/.test(String(adapter)) && Number(adapter) < adapters.length;
  const found = isIndex ? adapters[Number(adapter)] : fitting.find(isNamed);
  if (!found || !fitting.includes(found)) throw noneSuch(choice, adapters);
  // Dawn takes the first whose name contains the flag's.
  const taken = adapters.find((adapter) => adapter.backend === found.backend && adapter.name.includes(found.name));
  if (taken === found) return found;
  throw new UnsupportedError(
    `Cannot use the GPU asked for (${written(choice)}): the adapter ${adapters.indexOf(taken!)} matches that name too (${taken!.name}), and Dawn selects adapters by name alone. Hide the other adapter with the driver's environment variables.`,
    { part: "compute", capability: "device.adapter" },
  );
}

function noneSuch(choice: AdapterChoice, adapters: readonly AdapterName[]): ConfigError {
  const list = adapters.map(({ name, backend }, i) => `${i} ${name} (${backend})`).join(", ");
  const has = list === "" ? "This machine has no adapter." : `There are: ${list}.`;
  const path = choice.adapter === undefined ? "device.backend" : "device.adapter";
  return new ConfigError(`Cannot use the GPU asked for (${written(choice)}): no adapter fits. ${has}`, { path });
}

function written({ adapter, backend, toggles = [] }: AdapterChoice): string {
  const parts = [
    adapter === undefined ? "" : `device.adapter=${adapter}`,
    backend === undefined ? "" : `device.backend=${backend}`,
    toggles.length > 0 ? `device.toggles=[${toggles.join(",")}]` : "",
  ];
  return parts.filter((part) => part !== "").join(" ");
}

/** An adapter of this machine. */
export interface ListedAdapter {
  /** Number that `device.adapter` takes, besides a part of the name. */
  readonly index: number;
  readonly name: string;
  /** Empty where the runtime does not tell it. */
  readonly backend: string;
  /** `cpu` is a driver that computes on the processor. */
  readonly type: "gpu" | "cpu";
  readonly vendor: string;
  readonly architecture: string;
  readonly driver: string;
  readonly features: readonly string[];
  readonly limits: ReturnType<typeof gpuInfo>["limits"];
}

/** Every adapter that can be chosen; where nothing can be chosen, the one that is used. */
export async function listAdapters(): Promise<ListedAdapter[]> {
  const named = await dawnAdapters();
  if (!named)
    return [await findAdapter(undefined, {})].flatMap((adapter) => (adapter ? [listed(adapter, { index: 0 })] : []));
  const found = await Promise.all(
    named.map(async (name, index) => {
      const gpu = (await openDawn(dawnFlags(name, [])))!;
      const adapter = await gpu.requestAdapter();
      return adapter ? [listed(adapter, { index, ...name })] : [];
    }),
  );
  return found.flat();
}

function listed(adapter: GpuAdapter, about: { index: number } & Partial<AdapterName>): ListedAdapter {
  const { vendor, architecture, description, features, limits, family } = gpuInfo(adapter);
  return {
    index: about.index,
    name: about.name ?? adapter.info.device,
    backend: about.backend ?? "",
    type: family === "scalar" ? "cpu" : "gpu",
    vendor,
    architecture,
    driver: description,
    features,
    limits,
  };
}
