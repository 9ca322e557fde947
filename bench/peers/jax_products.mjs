/**
 * Products of float32 matrices with jax-js on WebGPU, through the same Dawn and adapter as ours: a row of JSON for each `m x n x k`.
 *
 *     node bench/peers/jax_products.mjs 512x512x512 8192x344x64
 */
import { createRequire } from "node:module";
import { require, skip, tell, timed } from "./timing.mjs";

const webgpu = createRequire(import.meta.url)("webgpu");
Object.assign(globalThis, webgpu.globals);
Object.defineProperty(globalThis, "navigator", {
  value: { gpu: webgpu.create([]), userAgent: "" },
  configurable: true,
});
const jax = require("@jax-js/jax");
if (!(await jax.init("webgpu")).includes("webgpu")) skip("jax-js finds no WebGPU adapter");
jax.defaultDevice("webgpu");

const { numpy } = jax;
const matrix = (rows, columns) =>
  numpy
    .array(Float32Array.from({ length: rows * columns }, (_, i) => ((i * 7919) % 1013) / 1013 - 0.5))
    .reshape([rows, columns]);
const product = jax.jit((a, b) => numpy.matmul(a, b));

for (const what of process.argv.slice(2)) {
  const [m, n, k] = what.split("x").map(Number);
  const [a, b] = [matrix(m, k), matrix(k, n)];
  const first = (await product(a.ref, b.ref).data())[0];
  const run = async () => {
    const c = product(a.ref, b.ref);
    await c.blockUntilReady();
    c.dispose();
  };
  tell({ ...(await timed(what, run, (2 * m * n * k) / 1e9)), first });
}
process.exit(0);
