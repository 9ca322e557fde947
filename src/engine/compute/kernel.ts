/**
 * A kernel is one value: its WGSL module, bindings, parameters, grid and tolerance, and a plain TypeScript reference that
 * tests compare with. The references together are the `cpu` device.
 */

/** Element type of a storage buffer as the reference sees it. vec4<f32> arrays are `f32` here. */
export type ElementType = "f32" | "u32" | "i32";

/** `read` is `var<storage, read>`, `write` is `var<storage, read_write>` (outputs and in-outs alike). */
export type BindingKind = `${"read" | "write"} ${ElementType}`;

type ArrayOf<K extends BindingKind> = K extends `${string} f32`
  ? Float32Array
  : K extends `${string} u32`
    ? Uint32Array
    : Int32Array;

/** Scalar fields of the WGSL `Params` struct, in its order. */
export type ParamTypes = Readonly<Record<string, ElementType>>;
export type BindingKinds = Readonly<Record<string, BindingKind>>;
export type Values<P extends ParamTypes> = { readonly [K in keyof P]: number };
/** Values of the module's `override` constants. */
export type Constants = Readonly<Record<string, number>>;

/** Workgroup counts. A count above 65,535 in x is folded over y by {@link folded}. */
export type Grid = readonly [x: number, y?: number, z?: number];

/** A kernel as one value: its WGSL module, bindings, parameters, grid, tolerance, and its reference. */
export interface Kernel<B extends BindingKinds = BindingKinds, P extends ParamTypes = ParamTypes> {
  /** Name of the module: `shaders/<name>.wgsl`, entry point `main`. */
  readonly name: string;
  /** Group 0, in binding order from 0 without gaps. At most 8. */
  readonly bindings: B;
  /** Group 1 binding 0, in the order of the WGSL struct. */
  readonly params: P;
  /** Defaults of the `override` constants. A dispatch may change them; each set is compiled to its own pipeline. */
  readonly constants?: Constants | undefined;
  /** How many workgroups a dispatch needs. */
  grid(params: Values<P>, constants: Constants): Grid;
  /**
   * Floating-point operations of a dispatch, where these and not the bytes that it binds decide how long it takes. Long
   * work is submitted in pieces by this estimate.
   */
  work?(params: Values<P>, constants: Constants): number;
  /**
   * The same result in plain TypeScript, float64 inside. Views are as long as the bound range, in elements.
   * Pooled buffers are larger than their contents: sizes come from params, never from `.length`.
   */
  reference(buffers: { readonly [K in keyof B]: ArrayOf<B[K]> }, params: Values<P>, constants: Constants): void;
  /** How far the device may be from the reference: |a - b| <= absolute + relative * |b|. */
  readonly tolerance: { readonly relative: number; readonly absolute: number };
  /** WGSL text in place of a file; a function makes it when the kernel is compiled, as for a loss joined to its frame. */
  readonly source?: string | (() => Promise<string>) | undefined;
}

/** Infers the types of a kernel literal. */
export function defineKernel<const B extends BindingKinds, const P extends ParamTypes>(
  kernel: Kernel<B, P>,
): Kernel<B, P> {
  return kernel;
}

/** WebGPU's limit on workgroups in one dimension. */
export const MAX_WORKGROUPS_PER_DIMENSION = 65_535;

/**
 * A one-dimensional grid of `count` workgroups, folded over y above the limit. The shader restores the index as
 * `workgroup_id.y * num_workgroups.x + workgroup_id.x` and guards the tail.
 */
export function folded(count: number): readonly [x: number, y: number, z: number] {
  if (count <= MAX_WORKGROUPS_PER_DIMENSION) return [Math.max(count, 0), 1, 1];
  const rows = Math.ceil(count / MAX_WORKGROUPS_PER_DIMENSION);
  return [Math.ceil(count / rows), rows, 1];
}
