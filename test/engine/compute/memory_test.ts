/** Sizes, ranges and the pool of buffers, by figures. */
import { describe, expect, test } from "vitest";
import {
  BufferPool,
  capacityFor,
  formatBytes,
  largestWithin,
  MemoryRange,
} from "../../../src/engine/compute/memory.ts";

test.each([
  [0, 256],
  [1, 256],
  [256, 256],
  [257, 512],
  [2048, 2048],
  [2049, 2304],
  // From here on steps are an eighth of the power of two below.
  [4096, 4096],
  [4097, 4608],
  [8191, 8192],
  [8193, 9216],
  [3 * 2 ** 20 + 1, 3.25 * 2 ** 20],
])("%i bytes take a buffer of %i", (bytes, capacity) => {
  expect(capacityFor(bytes)).toBe(capacity);
  expect(capacityFor(capacity)).toBe(capacity);
  expect(largestWithin(capacity)).toBe(capacity);
});

test.each([
  [0, 0],
  [255, 0],
  [256, 256],
  [4607, 4096],
  [4608, 4608],
  [8191, 7680],
  [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY],
])("the largest buffer within %f bytes has %f", (bytes, largest) => {
  expect(largestWithin(bytes)).toBe(largest);
});

test.each([
  [0, "0.0 KiB"],
  [1536, "1.5 KiB"],
  [10 * 2 ** 10 - 1, "10.0 KiB"],
  [10 * 2 ** 10, "10 KiB"],
  [2 ** 20 - 1, "1024 KiB"],
  [2 ** 20, "1.0 MiB"],
  [9.5 * 2 ** 20, "9.5 MiB"],
  [10 * 2 ** 20, "10 MiB"],
  [2 ** 30 - 1, "1024 MiB"],
  [2 ** 30, "1.0 GiB"],
  [123.45 * 2 ** 30, "123.5 GiB"],
])("%f bytes are written %s", (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});

describe("a range of memory", () => {
  const whole = new MemoryRange("storage", { label: "x", byteOffset: 0, byteLength: 1000, capacity: 1024, id: 7 });

  test("has slices of slices, which know the whole", () => {
    const slice = whole.slice(256, 600).slice(512, 88);
    expect(slice).toMatchObject({
      storage: "storage",
      label: "x",
      byteOffset: 768,
      byteLength: 88,
      capacity: 1024,
      id: 7,
    });
    expect(slice.whole).toBe(whole);
    expect(whole.whole).toBe(whole);
    expect(whole.slice(256, 744).byteLength).toBe(744);
    expect(whole.slice(0, 0).byteLength).toBe(0);
  });

  test.each([
    [128, 4, "Cannot slice x: its start is no multiple of 256 bytes (128)."],
    [256, 745, "Cannot slice x: the end is beyond its 1000 bytes (256 + 745)."],
    [-256, 300, "Cannot slice x: the end is beyond its 1000 bytes (-256 + 300)."],
    [256, -4, "Cannot slice x: the end is beyond its 1000 bytes (256 + -4)."],
  ])("has none from %i of %i bytes", (start, length, message) => {
    expect(() => whole.slice(start, length)).toThrow(message);
  });
});

describe("a pool", () => {
  function pool(limits: { budget?: number; maxBufferBytes?: number; refused?: string[] } = {}) {
    const { budget = 4096, maxBufferBytes = 4096, refused = [] } = limits;
    const destroyed: string[] = [];
    let made = 0;
    const of = new BufferPool<string>(
      {
        create: (capacity) => `${made++}: ${capacity}`,
        destroy: (storages) => void destroyed.push(...storages),
        usable: (storage) => !refused.includes(storage),
      },
      { budget, maxBufferBytes },
    );
    return { of, destroyed, refused };
  }
  const figures = ({ live, pooled, peak }: BufferPool<string>) => ({ live, pooled, peak });

  test("gives the buffer of that size that was released last, and counts what is live, free and was most", () => {
    const { of, destroyed } = pool();
    const [first, second] = [of.alloc(300, "first"), of.alloc(500, "second")];
    expect(figures(of)).toEqual({ live: 1024, pooled: 0, peak: 1024 });
    of.release(first);
    of.release(second);
    expect(figures(of)).toEqual({ live: 0, pooled: 1024, peak: 1024 });
    const again = of.alloc(400, "again");
    expect(again).toMatchObject({ storage: "1: 512", label: "again", byteOffset: 0, byteLength: 400, id: second.id });
    expect(of.alloc(513, "larger").storage).toBe("2: 768");
    expect(figures(of)).toEqual({ live: 1280, pooled: 512, peak: 1280 });
    expect(destroyed).toEqual([]);
  });

  test("takes its whole budget and its largest buffer, and not a byte more", () => {
    const { of } = pool({ budget: 1024, maxBufferBytes: 512 });
    expect(() => of.alloc(513, "x")).toThrow(
      "Cannot allocate x as one buffer: the device allows 512 bytes (513). Work in smaller batches.",
    );
    of.alloc(512, "x");
    of.alloc(512, "y");
    expect(() => of.alloc(1, "z")).toThrow(/^Cannot allocate z \(0\.3 KiB\) within the memory budget of 1\.0 KiB/);
  });

  test("names the three largest holders by label", () => {
    const { of } = pool({ budget: 4096 });
    for (const [label, bytes] of [
      ["a", 256],
      ["b", 512],
      ["c", 768],
      ["a", 768],
      ["d", 256],
    ] as const)
      of.alloc(bytes, label);
    expect(() => of.alloc(2048, "x")).toThrow("2.5 KiB are in use (a 1.0 KiB, c 0.8 KiB, b 0.5 KiB). Raise");
  });

  test("trims the buffers released first, of any size, and no more than a new one needs", () => {
    const { of, destroyed } = pool({ budget: 2048 });
    const held = [512, 256, 512, 256].map((bytes, i) => of.alloc(bytes, `${i}`));
    for (const i of [2, 1, 0, 3]) of.release(held[i]!);
    // 1,536 are free: 512 more are to hand, and 768 too many.
    of.alloc(1280, "x");
    expect(destroyed).toEqual(["2: 512", "1: 256"]);
    expect(figures(of)).toEqual({ live: 1280, pooled: 768, peak: 1536 });
    of.trim(1);
    expect(destroyed).toHaveLength(3);
    of.trim(10_000);
    expect(of.pooled).toBe(0);
    of.trim(1);
    expect(destroyed).toEqual(["2: 512", "1: 256", "0: 512", "3: 256"]);
  });

  test("destroys what the driver refused when it is released", () => {
    const { of, destroyed, refused } = pool();
    const range = of.alloc(256, "x");
    refused.push(range.storage);
    of.release(range);
    expect(destroyed).toEqual([range.storage]);
    expect(figures(of)).toMatchObject({ live: 0, pooled: 0 });
  });

  test("cleared, destroys free and live buffers", () => {
    const { of, destroyed } = pool();
    of.release(of.alloc(256, "free"));
    of.alloc(512, "live");
    of.clear();
    expect(destroyed).toEqual(["0: 256", "1: 512"]);
    expect(figures(of)).toMatchObject({ live: 0, pooled: 0 });
  });

  test("reset, forgets all buffers without destroying any; those of before may be released, those after once", () => {
    const { of, destroyed } = pool();
    of.release(of.alloc(256, "free"));
    const lost = of.alloc(512, "lost");
    of.reset();
    expect(figures(of)).toMatchObject({ live: 0, pooled: 0 });
    const fresh = of.alloc(256, "fresh");
    expect(fresh.storage).toBe("2: 256");
    of.release(lost);
    expect(of.live).toBe(256);
    of.release(fresh);
    expect(() => of.release(fresh)).toThrow("Cannot release fresh: it is a slice or was released before.");
    expect(destroyed).toEqual([]);
  });
});
