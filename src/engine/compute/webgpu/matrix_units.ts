/** Features that an adapter must have for products by subgroup matrices, and those that it lacks. */
import { UnsupportedError } from "../../../leaves/errors.ts";
import type { MatrixInputs, SubgroupMatrix } from "../device.ts";
import type { GpuAdapter } from "./types.ts";

/** WGSL's subgroup matrices are an experiment of Dawn's, which shows it with the toggle `allow_unsafe_apis`. */
export const SUBGROUP_MATRIX = "chromium-experimental-subgroup-matrix" as GPUFeatureName;

const LANES = 32;

/** A size and the types that matrix units multiply in. */
interface MatrixConfig {
  readonly componentType: string;
  readonly resultComponentType: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
}

/** Units that there are kernels for, the faster ones first, and the bytes of workgroup memory that these use. */
const UNITS: readonly { readonly inputs: MatrixInputs; readonly size: number; readonly workgroupBytes: number }[] = [
  { inputs: "f16", size: 16, workgroupBytes: 16_384 },
  { inputs: "f32", size: 8, workgroupBytes: 24_576 },
];

/** Returns the types that the adapter's units multiply, and the features that it lacks for that. */
export function matrixSupport({ info, features, limits }: GpuAdapter): Pick<SubgroupMatrix, "inputs" | "missing"> {
  const configs = [...((info as { subgroupMatrixConfigs?: Iterable<MatrixConfig> }).subgroupMatrixConfigs ?? [])];
  const units = UNITS.find(({ inputs, size }) => configs.some((config) => fits(config, { inputs, size })));
  const { subgroupMinSize: least = 0, subgroupMaxSize: most = 0 } = info;
  const lacks = (name: string) => !features.has(name as GPUFeatureName);
  const missing = [
    lacks(SUBGROUP_MATRIX) && `no feature ${SUBGROUP_MATRIX} (Dawn shows it with the toggle allow_unsafe_apis)`,
    units?.inputs !== "f32" &&
      lacks("shader-f16") &&
      "no feature shader-f16 (on NVIDIA, Dawn shows it with the toggle vulkan_enable_f16_on_nvidia)",
    lacks("subgroups") && "no feature subgroups (the driver is too old, or this runtime's WebGPU has none)",
    !lacks("subgroups") &&
      (least !== LANES || most !== LANES) &&
      `subgroups of ${least === most ? least : `${least} to ${most}`} lanes in place of ${LANES}`,
    !lacks(SUBGROUP_MATRIX) &&
      !units &&
      `neither units of 16 x 16 x 16 in f16 with sums in f32 nor of 8 x 8 x 8 in f32 (it has: ${configs.map(written).join(", ") || "none"})`,
    units &&
      limits.maxComputeWorkgroupStorageSize < units.workgroupBytes &&
      `${limits.maxComputeWorkgroupStorageSize} bytes of workgroup memory, and ${units.workgroupBytes} are needed`,
  ].filter((reason) => typeof reason === "string");
  return { inputs: units?.inputs, missing: missing.length > 0 ? missing.join("; ") : undefined };
}

/** @throws UnsupportedError that says what is missing, and how to show what is hidden */
export function requireMatrices(adapter: GpuAdapter): void {
  const { missing } = matrixSupport(adapter);
  if (missing === undefined) return;
  const { description, device } = adapter.info;
  throw new UnsupportedError(
    `Cannot multiply by subgroup matrices on ${description || device}: ${missing}. Set device.toggles=[allow_unsafe_apis,vulkan_enable_f16_on_nvidia] where the GPU has them, or leave device.products at auto.`,
    { part: "compute", capability: "device.products" },
  );
}

function fits(
  { componentType, resultComponentType, M, N, K }: MatrixConfig,
  { inputs, size }: { inputs: MatrixInputs; size: number },
): boolean {
  return componentType === inputs && resultComponentType === "f32" && M === size && N === size && K === size;
}

function written({ componentType, resultComponentType, M, N, K }: MatrixConfig): string {
  return `${M} x ${N} x ${K} ${componentType} to ${resultComponentType}`;
}
