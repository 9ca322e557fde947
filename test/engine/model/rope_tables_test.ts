import { expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { AttentionBlock } from "../../../src/engine/model/blocks/attention_block.ts";
import type { ModelConfig } from "../../../src/engine/model/config.ts";
import { blocksOf } from "../../../src/engine/model/layers.ts";
import { RopeTables } from "../../../src/engine/model/rope_tables.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const blocksIn = (config: ModelConfig) => blocksOf(config).filter((block) => block.kind === "attention");
const tablesOf = (device: CpuDevice, config: ModelConfig) =>
  new RopeTables(device, { blocks: blocksIn(config), contextLength: config.contextLength });
const [FIRST, SECOND] = blocksIn(SMALL_MODEL) as [AttentionBlock, AttentionBlock];

const LONG: ModelConfig = { ...SMALL_MODEL, contextLength: 20_000 };
const BYTES = SMALL_MODEL.headDim * 4;

test("tables grow with the longest sequence, in powers of two, up to the context", async () => {
  const device = new CpuDevice();
  const tables = tablesOf(device, LONG);
  const sizes = [];
  for (const tokens of [1, 4096, 4097, 5000, 9000, 1e9]) {
    tables.reserve(tokens);
    sizes.push(tables.table(FIRST).byteLength / BYTES);
  }
  expect(sizes).toEqual([4096, 4096, 8192, 8192, 16_384, 20_000]);
  expect(tablesOf(device, SMALL_MODEL).table(FIRST).byteLength / BYTES).toBe(32);
});

test("a longer table has the values of a shorter one", async () => {
  const device = new CpuDevice();
  const tables = tablesOf(device, LONG);
  const read = () => device.read([{ buffer: tables.table(SECOND), type: "f32", length: 4096 * SMALL_MODEL.headDim }]);
  const short = await read();
  tables.reserve(10_000);
  expect(await read()).toEqual(short);
});

test("layers with the same rotary positions share a table, and growing keeps no old one", () => {
  const device = new CpuDevice();
  const before = device.memory.live;
  const config: ModelConfig = {
    ...LONG,
    layers: 4,
    slidingWindow: 4,
    slidingRopeTheta: 50,
    layerTypes: ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    layersWithoutRope: [3],
  };
  const tables = tablesOf(device, config);
  expect(new Set(blocksIn(config).map((block) => tables.table(block))).size).toBe(2);
  const small = device.memory.live - before;
  tables.reserve(8192);
  expect(device.memory.live - before).toBe(2 * small);
  tables.release();
  expect(device.memory.live).toBe(before);
});

test("where memory does not hold longer tables, the old ones stay", () => {
  const device = new CpuDevice({ memoryBudgetBytes: 2 * 4096 * BYTES });
  const tables = tablesOf(device, LONG);
  expect(() => tables.reserve(16_384)).toThrow(/memory/);
  expect(tables.table(FIRST).byteLength).toBe(4096 * BYTES);
});
