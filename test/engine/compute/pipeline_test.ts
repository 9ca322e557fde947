/** How kernels become pipelines: what is asked of WebGPU, what is made once, and what its refusals become. */
import { describe, expect, test, vi } from "vitest";
import { defineKernel, type Kernel } from "../../../src/engine/compute/kernel.ts";
import { PipelineCache } from "../../../src/engine/compute/webgpu/pipeline.ts";
import { ShaderError } from "../../../src/leaves/errors.ts";

interface Answers {
  readonly messages?: readonly { type: string; lineNum: number; linePos: number; message: string }[];
  readonly invalid?: { message: string } | null;
  readonly refusal?: Error;
}

/** Makes objects that hold what they were made of. */
function fakeGpu({ messages = [], invalid = null, refusal }: Answers = {}) {
  const gpu = {
    createBindGroupLayout: vi.fn((of: object) => ({ ...of })),
    createPipelineLayout: vi.fn((of: object) => ({ ...of })),
    createShaderModule: vi.fn((of: object) => ({ ...of, getCompilationInfo: async () => ({ messages }) })),
    createComputePipelineAsync: vi.fn(async (of: object) => {
      if (refusal) throw refusal;
      return { ...of };
    }),
    pushErrorScope: vi.fn(),
    popErrorScope: vi.fn(async () => invalid),
  };
  return { gpu, cache: new PipelineCache(gpu as never) };
}

const SOURCE = "first;\n  second;  \n//#file parts/shared\nthird;";
const kernel = (params: Record<string, "f32">, name = "own", source = SOURCE): Kernel =>
  defineKernel({
    name,
    source,
    bindings: { x: "read f32", index: "read u32", y: "write f32" },
    params,
    grid: () => [1],
    reference() {},
    tolerance: { relative: 0, absolute: 0 },
  }) as unknown as Kernel;

const scalars = (count: number) =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`p${i}`, "f32" as const]));

describe("a pipeline", () => {
  test("lays out bindings in order, and the params of a struct in whole vec4s", async () => {
    const { gpu, cache } = fakeGpu();
    const pipeline = cache.get(kernel(scalars(5)), { WORKGROUP: 64 });
    const storage = { binding: 0, visibility: 4, buffer: { type: "read-only-storage" } };
    expect(pipeline).toMatchObject({ bindingCode: 0b1001 + 32 * 512, paramsBytes: 32 });
    const params = { type: "uniform", hasDynamicOffset: true, minBindingSize: 32 };
    expect(pipeline.bindingLayout).toMatchObject({
      label: "rrw, 32",
      entries: [
        ...[storage, { ...storage, binding: 1 }, { ...storage, binding: 2, buffer: { type: "storage" } }],
        { binding: 8, visibility: 4, buffer: params },
      ],
    });
    await pipeline.compile();
    expect(gpu.createPipelineLayout.mock.calls).toEqual([[{ bindGroupLayouts: [pipeline.bindingLayout] }]]);
    expect(pipeline.compiled).toMatchObject({
      label: "own",
      compute: { module: { label: "own", code: SOURCE }, entryPoint: "main", constants: { WORKGROUP: 64 } },
    });
    expect(gpu.pushErrorScope.mock.calls).toEqual([["validation"]]);
  });

  test("with the kernel's own constants is found by the kernel alone", () => {
    const { cache } = fakeGpu();
    const constant = { ...kernel(scalars(1)), constants: { WORKGROUP: 64 } };
    const pipeline = cache.getPlain(constant);
    expect(cache.get(constant, { WORKGROUP: 64 })).toBe(pipeline);
    expect(cache.getPlain(constant)).toBe(pipeline);
    expect(cache.get(constant, { WORKGROUP: 32 })).not.toBe(pipeline);
  });

  test.each([
    [0, 0],
    [1, 16],
    [4, 16],
    [5, 32],
  ])("with %i params binds %i bytes of them", async (count, bytes) => {
    const { gpu, cache } = fakeGpu();
    const pipeline = cache.get(kernel(scalars(count)), {});
    expect(pipeline.paramsBytes).toBe(bytes);
    await pipeline.compile();
    const [[{ entries }]] = gpu.createBindGroupLayout.mock.calls as unknown as [[{ entries: [] }]];
    expect(entries).toHaveLength(bytes === 0 ? 3 : 4);
  });

  test("is made once for a kernel and its constants, its module once for the kernel, layouts once for all", async () => {
    const { gpu, cache } = fakeGpu();
    const [one, other] = [kernel(scalars(1)), kernel(scalars(2), "other")];
    const made = [cache.get(one, {}), cache.get(one, { A: 1 }), cache.get(one, { A: 1, B: 2 }), cache.get(other, {})];
    expect(new Set(made).size).toBe(4);
    expect(cache.get(one, { A: 1 })).toBe(made[1]);
    for (const pipeline of [...made, ...made]) await pipeline.compile();
    expect(gpu.createComputePipelineAsync).toHaveBeenCalledTimes(4);
    expect(gpu.createShaderModule).toHaveBeenCalledTimes(2);
    expect(gpu.createBindGroupLayout).toHaveBeenCalledTimes(1);
  });

  test("reads its params from the group of its buffers", async () => {
    const { cache } = fakeGpu();
    const source =
      "@group(1) @binding(0) var<uniform> params: Params;\n@group(1)\n@binding(0) var<uniform> own: Params;";
    const pipeline = cache.get(kernel(scalars(1), "own", source), {});
    await pipeline.compile();
    const code = "@group(0) @binding(8) var<uniform> params: Params;\n@group(0) @binding(8) var<uniform> own: Params;";
    expect(pipeline.compiled).toMatchObject({ compute: { module: { code } } });
  });

  test("is ready once compiled, and cannot be encoded before", async () => {
    const pipeline = fakeGpu().cache.get(kernel({}), {});
    expect(pipeline.ready).toBe(false);
    expect(() => pipeline.compiled).toThrow("Cannot encode a pipeline before it is compiled");
    await pipeline.compile();
    expect(pipeline.ready).toBe(true);
  });

  test("of a file holds its module", async () => {
    const { gpu, cache } = fakeGpu();
    const { source: _, ...file } = kernel({}, "measure/copy");
    await cache.get(file, {}).compile();
    expect(gpu.createShaderModule.mock.calls[0]![0]).toMatchObject({
      code: expect.stringContaining("fn main") as string,
    });
  });
});

describe("a kernel that WebGPU refuses", () => {
  const at = (lineNum: number, type = "error") => ({ type, lineNum, linePos: 7, message: `wrong at ${lineNum}` });
  test.each<[string, Answers, string, number | undefined]>([
    ["a line of its own", { messages: [at(2)] }, "compile the kernel own: line 2:7: wrong at 2\n    second;", 2],
    [
      "a line that it includes",
      { messages: [at(4)] },
      "compile the kernel own: parts/shared.wgsl line 1:7: wrong at 4\n    third;",
      1,
    ],
    [
      "the first error, not a warning",
      { messages: [at(1, "warning"), at(2), at(4)] },
      "compile the kernel own: line 2:7",
      2,
    ],
    ["no known line", { messages: [at(0)] }, "compile the kernel own: wrong at 0", undefined],
    ["a line past the end", { messages: [at(9)] }, "compile the kernel own: parts/shared.wgsl line 6:7: wrong at 9", 6],
    ["the module", { invalid: { message: "no entry" } }, "compile the kernel own: no entry", undefined],
    ["the pipeline", { refusal: new Error("no such override") }, "build the kernel own: no such override", undefined],
  ])("says so of %s", async (_, answers, message, line) => {
    const error: unknown = await fakeGpu(answers)
      .cache.get(kernel({}), {})
      .compile()
      .catch((cause: unknown) => cause);
    expect(error).toBeInstanceOf(ShaderError);
    expect(error).toMatchObject({ kernel: "own", line });
    expect((error as Error).message.startsWith(`Cannot ${message}`), String(error)).toBe(true);
  });

  test("warnings refuse nothing", async () => {
    const pipeline = fakeGpu({ messages: [at(1, "warning")] }).cache.get(kernel({}), {});
    await pipeline.compile();
    expect(pipeline.ready).toBe(true);
  });
});
