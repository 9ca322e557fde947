/** Records work of several kernels with the kernels of a family, and compares their results with the reference of one kernel. */
import type { Data, Device, DeviceInfo } from "../../../../src/engine/compute/device.ts";
import type { BindingKinds, Kernel, ParamTypes } from "../../../../src/engine/compute/kernel.ts";
import { logprob, recordLogprob } from "../../../../src/engine/model/kernels/logprob.ts";
import { SETTING_FLOATS, sample } from "../../../../src/engine/model/kernels/sample.ts";
import { filtersOf, recordSample } from "../../../../src/engine/model/kernels/sample_tiled.ts";
import { Scratch } from "../../../../src/engine/model/scratch.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { expectClose, type Results, type Run, runOn } from "./run.ts";

type Family = DeviceInfo["family"];
type Devices = { readonly gpu: Device; readonly cpu: Device };
type Tolerance = { readonly relative: number; readonly absolute: number };

/** {@link logprob}. @returns the GPU's results. */
export function logprobOnBoth(
  devices: Devices,
  of: { family: Family; run: LogprobRun; tolerance?: Tolerance },
): Promise<Results<typeof logprob.bindings>> {
  return recordedOnBoth(devices, {
    ...of,
    kernel: logprob,
    record: (device, options) => recordLogprob(device, options),
  });
}

/** {@link sample}. @returns the GPU's results. */
export function sampleOnBoth(
  devices: Devices,
  of: { family: Family; run: SampleRun },
): Promise<Results<typeof sample.bindings>> {
  const filters = filtersOfSettings(of.run.buffers.settings);
  return recordedOnBoth(devices, {
    ...of,
    kernel: sample,
    record: (device, options) => recordSample(device, { ...options, filters }),
  });
}

export type LogprobRun = Run<typeof logprob.bindings, typeof logprob.params>;
export type SampleRun = Run<typeof sample.bindings, typeof sample.params>;

function filtersOfSettings(settings: Data) {
  const rows = Array.from({ length: settings.length / SETTING_FLOATS }, (_, row) => {
    const [temperature = 0, top_p = 0, top_k = 0] = settings.subarray(row * SETTING_FLOATS);
    return { temperature, top_p, top_k };
  });
  return filtersOf(rows);
}

interface Recorded<B extends BindingKinds, P extends ParamTypes> {
  readonly family: Family;
  readonly kernel: Kernel<B, P>;
  readonly run: Run<B, P>;
  readonly tolerance?: Tolerance | undefined;
  readonly record: (device: Device, options: { buffers: never; params: Run<B, P>["params"]; scratch: Scratch }) => void;
}

/** What `record` gives with the kernels of a family, against the reference of `kernel`. @returns the GPU's results. */
export async function recordedOnBoth<B extends BindingKinds, P extends ParamTypes>(
  { gpu, cpu }: Devices,
  { family, kernel, run, record, tolerance }: Recorded<B, P>,
): Promise<Results<B>> {
  const device = changed(gpu, { info: { ...gpu.info, family } });
  const recording = changed(device, {
    dispatch: (_, { buffers, params }) =>
      Scratch.during(device, (scratch) =>
        record(device, { buffers: buffers as never, params: params as never, scratch }),
      ),
  });
  const got = await runOn(recording, kernel, run);
  const wanted = await runOn(cpu, kernel, run);
  for (const name of Object.keys(kernel.bindings))
    expectClose(got[name]!, wanted[name]!, { ...(tolerance ?? kernel.tolerance), name: `${kernel.name}.${name}` });
  return got;
}
