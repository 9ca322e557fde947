/** What an adapter must have for products by subgroup matrices, and what it lacks. */
import { UnsupportedError } from "../../errors.ts";
import type { GpuAdapter } from "./types.ts";

/** WGSL's subgroup matrices are an experiment of Dawn's, which shows it with the toggle `allow_unsafe_apis`. */
export const SUBGROUP_MATRIX = "chromium-experimental-subgroup-matrix" as GPUFeatureName;

/** Requested together; where Dawn hides them, the toggle that shows them. */
const FEATURES: readonly (readonly [feature: GPUFeatureName, toggle: string])[] = [
  [SUBGROUP_MATRIX, "Dawn shows it with the toggle allow_unsafe_apis"],
  ["shader-f16", "on NVIDIA, Dawn shows it with the toggle vulkan_enable_f16_on_nvidia"],
  ["subgroups", "the driver is too old"],
];

const LANES = 32;

/** A size and the types that matrix units multiply in. */
interface MatrixConfig {
  readonly componentType: string;
  readonly resultComponentType: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
}

/** Undefined where nothing is missing. */
export function missingForMatrices({ info, features }: GpuAdapter): string | undefined {
  const missing = FEATURES.filter(([feature]) => !features.has(feature)).map(
    ([feature, why]) => `no feature ${feature} (${why})`,
  );
  const { subgroupMinSize: least = 0, subgroupMaxSize: most = 0 } = info;
  if (features.has("subgroups") && (least !== LANES || most !== LANES))
    missing.push(`subgroups of ${least === most ? least : `${least} to ${most}`} lanes in place of ${LANES}`);
  if (features.has(SUBGROUP_MATRIX)) {
    const configs = configsOf(info);
    if (!configs.some(isMultiplied))
      missing.push(
        `no units of 16 x 16 x 16 in f16 with sums in f32 (it has: ${configs.map(written).join(", ") || "none"})`,
      );
  }
  return missing.length > 0 ? missing.join("; ") : undefined;
}

/** @throws UnsupportedError that says what is missing, and how to show what is hidden */
export function requireMatrices(adapter: GpuAdapter): void {
  const missing = missingForMatrices(adapter);
  if (missing === undefined) return;
  const { description, device } = adapter.info;
  throw new UnsupportedError(
    `Cannot multiply by subgroup matrices on ${description || device}: ${missing}. Set device.toggles=[allow_unsafe_apis,vulkan_enable_f16_on_nvidia] where the GPU has them, or leave device.products at auto.`,
    { part: "compute", capability: "device.products" },
  );
}

function configsOf(info: GPUAdapterInfo): MatrixConfig[] {
  return [...((info as { subgroupMatrixConfigs?: Iterable<MatrixConfig> }).subgroupMatrixConfigs ?? [])];
}

function isMultiplied({ componentType, resultComponentType, M, N, K }: MatrixConfig): boolean {
  return componentType === "f16" && resultComponentType === "f32" && M === 16 && N === 16 && K === 16;
}

function written({ componentType, resultComponentType, M, N, K }: MatrixConfig): string {
  return `${M} x ${N} x ${K} ${componentType} to ${resultComponentType}`;
}
