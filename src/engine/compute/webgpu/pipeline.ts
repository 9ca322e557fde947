/** Compiles kernels, once per set of constants, and turns WebGPU's errors into ones that quote the shader. */
import { ShaderError } from "../../../leaves/errors.ts";
import type { BindingKinds, Constants, Kernel } from "../kernel.ts";
import { kernelText, sourceLine } from "../shader.ts";
import type { GpuBindGroupLayout, GpuComputePipeline, GpuDevice } from "./types.ts";

const COMPUTE_STAGE = 0x4;

/** The binding of a kernel's params, behind those of its buffers, of which there are eight at most. */
export const PARAMS_BINDING = 8;

/** A kernel with its constants, compiled on demand. */
export class Pipeline {
  /** Code of the layout, a number. */
  readonly bindingCode: number;
  readonly bindingLayout: GpuBindGroupLayout;
  readonly paramsBytes: number;
  private readonly compileOnce: () => Promise<GpuComputePipeline>;
  private compiling: Promise<void> | undefined;
  private result: GpuComputePipeline | undefined;

  constructor(
    layout: { bindingKey: string; binding: GpuBindGroupLayout; paramsBytes: number },
    compileOnce: () => Promise<GpuComputePipeline>,
  ) {
    const bits = layout.bindingKey.replaceAll("r", "0").replaceAll("w", "1");
    this.bindingCode = Number.parseInt(`1${bits}`, 2) + layout.paramsBytes * 2 ** 9;
    this.bindingLayout = layout.binding;
    this.paramsBytes = layout.paramsBytes;
    this.compileOnce = compileOnce;
  }

  get ready(): boolean {
    return this.result !== undefined;
  }

  get compiled(): GpuComputePipeline {
    if (!this.result) throw new Error("Cannot encode a pipeline before it is compiled");
    return this.result;
  }

  compile(): Promise<void> {
    this.compiling ??= this.compileOnce().then((pipeline) => {
      this.result = pipeline;
    });
    return this.compiling;
  }
}

export class PipelineCache {
  private readonly device: GpuDevice;
  private readonly pipelines = new Map<Kernel, Map<string, Pipeline>>();
  /** Pipelines with the kernels' own constants. */
  private readonly plain = new Map<Kernel, Pipeline>();
  private readonly modules = new Map<Kernel, Promise<GPUShaderModule>>();
  private readonly layouts = new Map<string, GpuBindGroupLayout>();

  constructor(device: GpuDevice) {
    this.device = device;
  }

  /** Returns the pipeline with the kernel's own constants. */
  getPlain(kernel: Kernel): Pipeline {
    let pipeline = this.plain.get(kernel);
    if (!pipeline) {
      pipeline = this.get(kernel, kernel.constants ?? {});
      this.plain.set(kernel, pipeline);
    }
    return pipeline;
  }

  get(kernel: Kernel, constants: Constants): Pipeline {
    let variants = this.pipelines.get(kernel);
    if (!variants) {
      variants = new Map();
      this.pipelines.set(kernel, variants);
    }
    let key = "";
    for (const name in constants) key += `${name}=${constants[name]};`;
    let pipeline = variants.get(key);
    if (!pipeline) {
      pipeline = this.create(kernel, constants);
      variants.set(key, pipeline);
    }
    return pipeline;
  }

  private create(kernel: Kernel, constants: Constants): Pipeline {
    const bindingKey = keyOf(kernel.bindings);
    const paramsBytes = Math.ceil(Object.keys(kernel.params).length / 4) * 16;
    const binding = this.layout(`${bindingKey}, ${paramsBytes}`, () => layoutEntries(kernel, paramsBytes));
    return new Pipeline({ bindingKey, binding, paramsBytes }, async () => {
      const module = await this.module(kernel);
      const layout = this.device.createPipelineLayout({ bindGroupLayouts: [binding] });
      try {
        return await this.device.createComputePipelineAsync({
          label: kernel.name,
          layout,
          compute: { module, entryPoint: "main", constants: { ...constants } },
        });
      } catch (cause) {
        throw new ShaderError(`Cannot build the kernel ${kernel.name}: ${(cause as Error).message}`, {
          kernel: kernel.name,
        });
      }
    });
  }

  private layout(key: string, entries: () => GPUBindGroupLayoutEntry[]): GpuBindGroupLayout {
    let layout = this.layouts.get(key);
    if (!layout) {
      layout = this.device.createBindGroupLayout({ label: key, entries: entries() });
      this.layouts.set(key, layout);
    }
    return layout;
  }

  private module(kernel: Kernel): Promise<GPUShaderModule> {
    let module = this.modules.get(kernel);
    if (!module) {
      module = this.compileModule(kernel);
      this.modules.set(kernel, module);
    }
    return module;
  }

  private async compileModule(kernel: Kernel): Promise<GPUShaderModule> {
    const code = inOneGroup(await kernelText(kernel));
    this.device.pushErrorScope("validation");
    const module = this.device.createShaderModule({ label: kernel.name, code });
    const scope = this.device.popErrorScope();
    const { messages } = await module.getCompilationInfo();
    const error = messages.find(({ type }) => type === "error");
    const invalid = await scope;
    if (error) {
      const { text, line } = placed(code, error);
      throw new ShaderError(`Cannot compile the kernel ${kernel.name}: ${text}`, { kernel: kernel.name, line });
    }
    if (invalid)
      throw new ShaderError(`Cannot compile the kernel ${kernel.name}: ${invalid.message}`, {
        kernel: kernel.name,
      });
    return module;
  }
}

/**
 * Kernels declare their params in a group of their own. They are bound with the buffers, because each group that a dispatch binds
 * costs about a microsecond of the host.
 */
function inOneGroup(code: string): string {
  return code.replaceAll(/@group\(1\)\s*@binding\(0\)/g, `@group(0) @binding(${PARAMS_BINDING})`);
}

function layoutEntries({ bindings }: Kernel, paramsBytes: number): GPUBindGroupLayoutEntry[] {
  const buffers = Object.values(bindings).map((kind, binding): GPUBindGroupLayoutEntry => {
    const type = kind.startsWith("read") ? "read-only-storage" : "storage";
    return { binding, visibility: COMPUTE_STAGE, buffer: { type } };
  });
  if (paramsBytes === 0) return buffers;
  const params = { type: "uniform", hasDynamicOffset: true, minBindingSize: paramsBytes } as const;
  return [...buffers, { binding: PARAMS_BINDING, visibility: COMPUTE_STAGE, buffer: params }];
}

interface Message {
  readonly lineNum: number;
  readonly linePos: number;
  readonly message: string;
}

/** A compiler's message with its place in a file, and the text there. WebGPU's line 0 is a place that is not known. */
function placed(code: string, { lineNum, linePos, message }: Message): { text: string; line: number | undefined } {
  if (lineNum === 0) return { text: message, line: undefined };
  const quoted = code.split("\n")[lineNum - 1]?.trim() ?? "";
  const { file, line } = sourceLine(code, lineNum);
  return { text: `${file ? `${file}.wgsl ` : ""}line ${line}:${linePos}: ${message}\n    ${quoted}`, line };
}

function keyOf(bindings: BindingKinds): string {
  return Object.values(bindings)
    .map((kind) => (kind.startsWith("read") ? "r" : "w"))
    .join("");
}

/** WebGPU's error about a submit, with the kernel if it names one. */
export function validationError(message: string): ShaderError {
  const kernel = /\[ComputePipeline "([^"]+)"\]/.exec(message)?.[1] ?? "unknown";
  return new ShaderError(`Cannot run the recorded GPU work: ${message.trim()}`, { kernel });
}
