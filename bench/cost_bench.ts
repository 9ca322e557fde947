/**
 * What sampling and training cost in counted work, on machines that are not here: dispatches, bytes, operations, the smallest
 * dispatch, read-backs, and the least time that follows. The real code runs on a device that counts; what the CPU takes to record and
 * encode the work is measured on this machine. `--kernels` lists the dispatches of each phase by kernel.
 */
import { fileURLToPath } from "node:url";
import { TYPICAL_GPU } from "../src/engine/compute/counting.ts";
import { unpackMatrix } from "../src/engine/compute/matmul/unpack.ts";
import { openModelShape } from "../src/engine/model/model_shape.ts";
import { byKernel, MACHINES } from "./cost/machines.ts";
import { type CountedModel, type CountedPhase, countPhases } from "./cost/phases.ts";
import { count, countedOn, heading, openBenchDevice, processorSeconds, remark } from "./harness.ts";
import { STORIES_SHAPE } from "./model_bench.ts";
import { listsKernels } from "./options.ts";

const PUBLISHED = ["Qwen2.5-0.5B", "Qwen3-0.6B", "Llama-3.2-1B"];

export async function run(): Promise<void> {
  const dispatch = await timeDispatch();
  const here = { dispatch, on: countedOn(`counted, ${TYPICAL_GPU.family}`) };
  for (const model of await countedModels()) {
    heading(`${model.name}: counted on a typical GPU`);
    for (const phase of await countPhases(model, TYPICAL_GPU)) show(model.name, phase, here);
  }
}

/** Published shapes as their files hold them, with an adapter; and the stories model in full. */
export async function countedModels(): Promise<CountedModel[]> {
  const published = PUBLISHED.map(async (name): Promise<CountedModel> => {
    const folder = fileURLToPath(new URL(`../test/fixtures/published/${name}`, import.meta.url));
    const shape = await openModelShape(folder);
    return { name, shape, promptTokens: 512, longContext: 8192, passTokens: 8192, loraRank: 16 };
  });
  const stories = { config: STORIES_SHAPE, typeOf: () => undefined };
  return [
    ...(await Promise.all(published)),
    { name: "stories 260K", shape: stories, promptTokens: 128, passTokens: 8192 },
  ];
}

/** What is measured on this machine. */
interface Here {
  /** Processor seconds of a dispatch: least, median, most. */
  readonly dispatch: readonly number[];
  readonly on: ReturnType<typeof countedOn>;
}

const DISPATCHES = 1000;

/** Processor seconds of a dispatch of one workgroup that does nearly nothing, through this machine's driver: least, median, most. */
async function timeDispatch(): Promise<readonly number[]> {
  const device = await openBenchDevice();
  const [words, scales, out] = ["words", "scales", "out"].map((label) => device.alloc(256, label));
  const params = { rows: 1, columns: 4, offset: 0, stride: 4, out_row: 4, out_column: 1 };
  const work = async () => {
    for (let i = 0; i < DISPATCHES; i++)
      device.dispatch(unpackMatrix, { buffers: { words: words!, scales: scales!, out: out! }, params });
    await device.submit();
  };
  await work();
  const seconds: number[] = [];
  for (let round = 0; round < 5; round++) seconds.push((await processorSeconds(work)) / DISPATCHES);
  seconds.sort((x, y) => x - y);
  remark(
    `a dispatch on ${device.info.description}: ${(1e6 * seconds[2]!).toFixed(1)} us of processors, recorded, encoded and run`,
  );
  device.destroy();
  return [seconds[0]!, seconds[2]!, seconds[4]!];
}

function show(model: string, { name, cost, recording, dispatches }: CountedPhase, here: Here): void {
  const what = (figure: string) => `${model}, ${name}: ${figure}`;
  const { smallest } = cost;
  count({ what: what("dispatches"), value: cost.dispatches, unit: "dispatches" });
  count({ what: what("moved"), value: cost.bytes, unit: "bytes" });
  count({ what: what("operations"), value: cost.flop, unit: "FLOP" });
  count({ what: what("read-backs"), value: cost.readBacks, unit: "read-backs" });
  count({ what: what("time in dispatches under 64 workgroups"), value: 100 * cost.narrowShare, unit: "%" });
  count({ what: what("smallest dispatch"), value: smallest.workgroups, unit: "workgroups", isGain: true });
  for (const { name: machine } of MACHINES)
    count({ what: what(`least time, ${machine}`), value: 1000 * cost.seconds[machine]!, unit: "ms" });
  const [least = 0, median = 0, most = 0] = recording;
  count({
    what: what("recording"),
    value: 1000 * median,
    unit: "CPU ms",
    low: 1000 * least,
    high: 1000 * most,
    on: here.on,
  });
  const [low, value, high] = here.dispatch.map((seconds) => 1000 * cost.dispatches * seconds) as [
    number,
    number,
    number,
  ];
  count({ what: what("encoding by this driver"), value, unit: "CPU ms", low, high, on: here.on });
  remark(`the smallest dispatch is ${smallest.kernel}`);
  if (listsKernels(process.argv.slice(2)))
    for (const { kernel, count: times, seconds } of byKernel(dispatches))
      remark(`${String(times).padStart(6)} ${kernel.padEnd(32)} ${(1e6 * seconds).toFixed(1)} us`);
}
