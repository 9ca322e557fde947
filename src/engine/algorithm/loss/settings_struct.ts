/** The params of a loss's form inside a kernel: `struct Settings`, which the loss's frames read as `params.settings`. */
import type { ParamTypes } from "../../compute/kernel.ts";
import { finiteF32 } from "../f32.ts";
import type { LossSettings } from "./token.ts";

/** A module of a frame and the text that it lacks. The text comes first, so that compilers count its lines from 1. */
export function joinShader(wgsl: string, params: readonly string[], frame: string): string {
  const fields = Object.keys(paddedParams(params)).map((name) => `  ${name}: f32,\n`);
  return `${wgsl}\n\nstruct Settings {\n${fields.join("")}}\n\n${frame}`;
}

/** Scalars of a struct inside a uniform are padded to whole vectors of four. */
const SCALARS_PER_VECTOR = 4;

/** The fields of `Settings` in the order of the struct, padding included. */
export function paddedParams(params: readonly string[]): ParamTypes {
  const wanted = Math.max(Math.ceil(params.length / SCALARS_PER_VECTOR), 1) * SCALARS_PER_VECTOR;
  const padding = Array.from({ length: wanted - params.length }, (_, k) => `padding${params.length + k}`);
  return Object.fromEntries([...params, ...padding].map((name) => [name, "f32" as const]));
}

/** The values of the struct, padding included. */
export function structValues(names: readonly string[], values: LossSettings): LossSettings {
  const fields = Object.keys(paddedParams(names));
  return Object.fromEntries(fields.map((name) => [name, finiteF32(values[name] ?? 0)]));
}
