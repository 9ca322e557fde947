import { defineConfig } from "vitest/config";
import { isolated } from "../../vitest.config.ts";

/** Kernels of every family on Deno's own WebGPU, which is wgpu with the compiler naga, as in Firefox: `deno task test:webgpu`. */
export default defineConfig({
  ...isolated,
  test: {
    ...isolated.test,
    include: [
      "test/deno/*_test.ts",
      "test/engine/compute/{device,matmul,packed_matmul,tiled_products,repetition}_test.ts",
      "test/engine/algorithm/{kernels,logits,loss_property,recording}_test.ts",
      "test/engine/model/kernels/{decode_rows,elementwise,logprob,norm,sample,sample_tiled}_test.ts",
      "test/engine/model/train/optimizer_test.ts",
    ],
    exclude: ["**/node_modules/**"],
    setupFiles: ["test/deno/own_webgpu.ts"],
  },
});
