import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { diskFile } from "../../../../src/engine/model/files/disk.ts";
import type { ByteReader } from "../../../../src/engine/model/files/reader.ts";
import { openSafetensors } from "../../../../src/engine/model/files/safetensors.ts";
import {
  encodeSafetensors,
  type SafetensorsOptions,
  type TensorSource,
} from "../../../../src/engine/model/files/safetensors_write.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

const dir = temporaryFolder("safetensors");

function reader(bytes: Uint8Array, name = "made.safetensors"): ByteReader {
  return { name, size: bytes.length, read: async (offset, length) => bytes.slice(offset, offset + length) };
}

/** A file with this header and `dataBytes` bytes of numbers after it. */
function file(header: unknown, dataBytes: number | Uint8Array = 0): Uint8Array {
  const json = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const data = typeof dataBytes === "number" ? new Uint8Array(dataBytes) : dataBytes;
  const bytes = new Uint8Array(8 + json.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(json.length), true);
  bytes.set(json, 8);
  bytes.set(data, 8 + json.length);
  return bytes;
}

async function encode(tensors: TensorSource[], options?: SafetensorsOptions): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of encodeSafetensors(tensors, options)) chunks.push(chunk.slice());
  return Buffer.concat(chunks);
}

describe("openSafetensors() refuses", () => {
  const f32 = (begin: number, end: number, shape = [(end - begin) / 4]) => ({
    dtype: "F32",
    shape,
    data_offsets: [begin, end],
  });
  const cases: [name: string, bytes: Uint8Array, message: RegExp][] = [
    ["a file shorter than its length field", new Uint8Array(7), /truncated \(7 bytes\).*made\.safetensors/],
    [
      "a file of its length field alone",
      Uint8Array.of(2, 0, 0, 0, 0, 0, 0, 0),
      /ends inside its header \(8 of 10 bytes\)/,
    ],
    ["a header over 100 MB", Uint8Array.of(0, 0, 0, 0, 1, 0, 0, 0, 0), /header is over 100 MB \(4294967296 bytes\)/],
    ["a file that ends in its header", file({ a: f32(0, 4) }, 4).slice(0, 20), /ends inside its header \(20 of/],
    ["a header that is not JSON", file("{nope"), /header is not JSON/],
    ["a header that is a list", file("[]"), /not a JSON object/],
    ["an unknown dtype", file({ a: { ...f32(0, 4), dtype: "F8" } }, 4), /tensor a: its dtype is unknown \("F8"\)/],
    ["a dtype from Object's prototype", file({ a: { ...f32(0, 4), dtype: "toString" } }, 4), /dtype is unknown/],
    ["a negative size", file({ a: f32(0, 4, [-1]) }, 4), /tensor a: its shape is not a list of sizes \(\[-1\]\)/],
    ["offsets that do not fit the shape", file({ a: f32(0, 4, [2]) }, 4), /F32 \[2\] needs 8 bytes/],
    ["offsets backwards", file({ a: { dtype: "F32", shape: [0], data_offsets: [4, 0] } }, 4), /tensor a/],
    ["tensors that overlap", file({ a: f32(0, 8), b: f32(4, 12) }, 12), /tensor b: it overlaps another/],
    ["a hole between tensors", file({ a: f32(0, 4), b: f32(8, 12) }, 12), /tensor b: unnamed bytes lie before it/],
    ["bytes after the last tensor", file({ a: f32(0, 4) }, 6), /2 bytes follow its tensors/],
    [
      "a truncated file, naming file and tensor",
      file({ a: f32(0, 8), b: f32(8, 24) }, 24).slice(0, -4),
      /tensor b: the file is truncated.*made\.safetensors/,
    ],
  ];
  test.each(cases)("%s", async (_name, bytes, message) => {
    await expect(openSafetensors(reader(bytes))).rejects.toThrow(message);
    await expect(openSafetensors(reader(bytes))).rejects.toMatchObject({ name: "ConfigError" });
  });
});

describe("read()", () => {
  test("reads beyond 4 GiB", async () => {
    const path = join(dir, "large.safetensors");
    const last = 2 ** 32 + 2 ** 20;
    const header = {
      empty: { dtype: "BF16", shape: [last / 2], data_offsets: [0, last] },
      tail: { dtype: "F32", shape: [2], data_offsets: [last, last + 8] },
    };
    const start = file(header);
    const handle = await open(path, "w");
    // A sparse file: only its ends take space.
    await handle.write(start, 0, start.length, 0);
    await handle.write(new Uint8Array(Float32Array.of(1.5, -2).buffer), 0, 8, start.length + last);
    await handle.close();
    const { tensors, read } = await openSafetensors((await diskFile(path))!);
    expect(tensors.get("tail")?.offset).toBe(start.length + last);
    expect(await read("tail")).toEqual(Float32Array.of(1.5, -2));
    expect(await read("empty", { start: last / 2 - 3, length: 3 })).toEqual(new Float32Array(3));
    rmSync(path);
  });

  test("widens F16 and BF16 exactly, NaN and infinities included, at odd byte positions", async () => {
    // An odd number of U8 elements comes first, so that the next tensor is misaligned.
    const halves = Uint16Array.of(0x3c00, 0xc000, 0x7bff, 0x0001, 0x0400, 0x7c00, 0xfc00, 0x8000, 0x3555);
    const brains = Uint16Array.of(0x3f80, 0xbf81, 0x7f80, 0x0001);
    const data = new Uint8Array(3 + 18 + 8);
    data.set([1, 2, 255]);
    data.set(new Uint8Array(halves.buffer), 3);
    data.set(new Uint8Array(brains.buffer), 21);
    const header = {
      bytes: { dtype: "U8", shape: [3], data_offsets: [0, 3] },
      half: { dtype: "F16", shape: [9], data_offsets: [3, 21] },
      brain: { dtype: "BF16", shape: [2, 2], data_offsets: [21, 29] },
    };
    const whole = file(header, data);
    // A reader that returns views of one buffer.
    const made = await openSafetensors({
      ...reader(whole),
      read: async (o, n) => whole.subarray(o, o + n),
    });
    expect([...(await made.read("half"))]).toEqual([
      1,
      -2,
      65504,
      2 ** -24,
      2 ** -14,
      Number.POSITIVE_INFINITY,
      Number.NEGATIVE_INFINITY,
      -0,
      0.333251953125,
    ]);
    expect([...(await made.read("brain"))]).toEqual([1, -1.0078125, Number.POSITIVE_INFINITY, 2 ** -133]);
    expect([...(await made.read("brain", { start: 1, length: 1 }))]).toEqual([-1.0078125]);
    expect([...(await made.readIntegers("bytes"))]).toEqual([1, 2, 255]);
  });

  test("names the tensor in its errors", async () => {
    const made = await openSafetensors(
      reader(
        file(
          { n: { dtype: "I64", shape: [1], data_offsets: [0, 8] } },
          Uint8Array.of(255, 255, 255, 255, 255, 255, 255, 127),
        ),
      ),
    );
    await expect(made.read("n")).rejects.toThrow(/tensor n as floats: it holds I64/);
    await expect(made.readIntegers("n")).rejects.toThrow(/tensor n: an element is above 2\^53/);
    await expect(made.read("absent")).rejects.toThrow(/tensor absent: the file does not hold it/);
    await expect(made.read("n", { start: 0, length: 2 })).rejects.toThrow(RangeError);
  });
});

describe("encodeSafetensors()", () => {
  const tensors: TensorSource[] = [
    { name: "w", shape: [2, 3], data: Float32Array.of(1, -2, 3.140625, 1e-20, 65504, 1.00390625) },
    { name: "lazy", shape: [2], data: async () => Float32Array.of(7, 8) },
    { name: "empty", shape: [0, 4], data: new Float32Array(0) },
    { name: "ids", shape: [3], data: Uint32Array.of(1, 2, 4_294_967_295) },
    { name: "scalar", shape: [], data: Int32Array.of(-5) },
  ];

  test("is read back exactly", async () => {
    const made = await openSafetensors(reader(await encode(tensors, { metadata: { step: "3" } })));
    expect(made.metadata).toEqual({ format: "pt", step: "3" });
    expect([...made.tensors.keys()].sort()).toEqual(["empty", "ids", "lazy", "scalar", "w"]);
    expect(await made.read("w")).toEqual(tensors[0]!.data);
    expect([...(await made.read("lazy"))]).toEqual([7, 8]);
    expect([...(await made.readIntegers("ids"))]).toEqual([1, 2, 4_294_967_295]);
    expect([...(await made.readIntegers("scalar"))]).toEqual([-5]);
    expect(made.tensors.get("empty")?.shape).toEqual([0, 4]);
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    "refuses to write %d, naming the tensor and the place",
    async (value) => {
      const tensors = [{ name: "w", shape: [4], data: Float32Array.of(1, -2, value, 0) }];
      await expect(encode(tensors)).rejects.toThrow(`Cannot save the weights: w holds ${value} at index 2.`);
      expect((await encode(tensors, { anyNumber: true })).length).toBeGreaterThan(16);
    },
  );

  test("rounds BF16 to nearest even and keeps NaN", async () => {
    const given = Float32Array.of(1.00390625, 1.01171875, Number.NaN, 3.4e38, -1e-40);
    const bytes = await encode([{ name: "w", shape: [5], data: given }], { dtype: "BF16", anyNumber: true });
    const made = await openSafetensors(reader(bytes));
    const [even, up, nan, large, tiny] = await made.read("w");
    expect([even, up, nan, large]).toEqual([1, 1.015625, Number.NaN, Number.POSITIVE_INFINITY]);
    expect(Math.abs(tiny! - given[4]!)).toBeLessThan(2 ** -133);
  });

  test("refuses data that do not fill the shape, and repeated names", async () => {
    await expect(encode([{ name: "w", shape: [3], data: new Float32Array(2) }])).rejects.toThrow(
      /tensor w.*3 elements \(2\)/,
    );
    const twice = { name: "w", shape: [1], data: new Float32Array(1) };
    await expect(encode([twice, twice])).rejects.toThrow(/two tensors have the same name/);
  });

  const python = pythonWithSafetensors();
  test.skipIf(!python)("is read by Python's safetensors to the same values", async () => {
    const path = join(dir, "python.safetensors");
    writeFileSync(path, await encode(tensors, { dtype: "BF16" }));
    const script = `
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], "pt") as f:
    print(json.dumps({k: [str(f.get_tensor(k).dtype), f.get_tensor(k).double().flatten().tolist()] for k in f.keys()}))`;
    const read = JSON.parse(execFileSync("python3", ["-c", script, path], { encoding: "utf8" }));
    const own = await openSafetensors((await diskFile(path))!);
    expect(read.w[0]).toBe("torch.bfloat16");
    expect(read.w[1]).toEqual([...(await own.read("w"))]);
    expect(read.ids).toEqual(["torch.uint32", [1, 2, 4_294_967_295]]);
  });
});

describe("golden files", () => {
  test.skipIf(!hasShared).each(["stories260k", "tiny-qwen3"])("of %s read whole, in ranges, and back", async (name) => {
    const path = sharedPath(`golden/model/${name}.safetensors`);
    const golden = await openSafetensors((await diskFile(path))!);
    const logits = await golden.read("base.0.logits");
    const [rows, vocab] = golden.tensors.get("base.0.logits")!.shape;
    expect(logits.length).toBe(rows! * vocab!);
    const second = await golden.read("base.0.logits", { start: vocab!, length: vocab! });
    expect(second).toEqual(logits.slice(vocab, 2 * vocab!));
    // log-softmax of the stored logits is the stored log-prob: the numbers are where the header says.
    const tokens = await golden.readIntegers("base.0.tokens");
    const row = [...logits.slice(0, vocab)];
    const logSum = Math.log(row.reduce((sum, x) => sum + Math.exp(x), 0));
    const logprobs = await golden.read("base.0.logprobs");
    expect(row[tokens[1]!]! - logSum).toBeCloseTo(logprobs[0]!, 4);
    const copy = await encode([{ name: "l", shape: [rows!, vocab!], data: logits }]);
    expect(await (await openSafetensors(reader(copy))).read("l")).toEqual(logits);
  });

  test.skipIf(!hasShared)("truncated, are refused with the file and the tensor", async () => {
    const path = join(dir, "cut.safetensors");
    writeFileSync(path, readFileSync(sharedPath("models/stories260k/model.safetensors")).subarray(0, 900_000));
    await expect(openSafetensors((await diskFile(path))!)).rejects.toThrow(
      /tensor model\.layers\.\S+: the file is truncated \(.* of 900000\).*cut\.safetensors/,
    );
  });
});

function pythonWithSafetensors(): boolean {
  try {
    execFileSync("python3", ["-c", "import safetensors, torch"], { stdio: "ignore" });
    return true;
  } catch {
    console.warn("skipped: reading our safetensors with Python's needs `pip install safetensors torch`");
    return false;
  }
}
