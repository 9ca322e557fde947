import { expect, test } from "vitest";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { embedRows } from "../../../src/engine/model/embed_rows.ts";
import { narrowDevice } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

overDevices("rows of a packed table", (device) => {
  for (const format of PACKED_FORMATS)
    test.each([
      [0, 4, 3, 2 ** 20],
      [1, 4, 1, 2 ** 20],
      [65, 68, 7, 2 ** 20],
      // In windows, the last of them shorter.
      [20, 64, 523, 2 ** 13],
      [200, 72, 2500, 2 ** 16],
    ])(`${format}: %i tokens of width %i from %i rows, a binding of %i bytes`, async (count, width, rows, limit) => {
      const { words, scales, values } = packedElements(format, rows * width, 5);
      const ids = Uint32Array.from({ length: count }, (_, i) => (i * 7919 + rows - 1) % rows);
      const [W, S, I] = [device.upload(words, "table"), device.upload(scales, "scales"), device.upload(ids, "ids")];
      const out = device.alloc(count * width * 4, "out");
      embedRows(narrowDevice(device, limit), { buffer: W, scales: S, format, rows, width }, { tokens: I, out, count });
      const expected = Float32Array.from({ length: count * width }, (_, i) => {
        return values[ids[Math.floor(i / width)]! * width + (i % width)]!;
      });
      expect(await readFloats(device, out, count * width)).toEqual(expected);
      device.release(W, S, I, out);
    });

  test("more than 65,535 workgroups", async () => {
    const [count, width, rows] = [70_001, 256, 5];
    const { words, values } = packedElements("bfloat16", rows * width, 6);
    const ids = Uint32Array.from({ length: count }, (_, i) => i % rows);
    const [W, I] = [device.upload(words, "table"), device.upload(ids, "ids")];
    const out = device.alloc(count * width * 4, "out");
    embedRows(device, { buffer: W, format: "bfloat16", rows, width }, { tokens: I, out, count });
    const got = await readFloats(device, out, count * width);
    for (const t of [0, 1, 65_534, 65_535, 70_000])
      expect(got.subarray(t * width, (t + 1) * width)).toEqual(
        values.subarray((t % rows) * width, (t % rows) * width + width),
      );
    device.release(W, I, out);
  });
});
