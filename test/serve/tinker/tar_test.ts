/** Headers of tar archives by POSIX's layout: name at 0, size at 124, checksum at 148, magic at 257. */
import { expect, test } from "vitest";
import { tarHeader, tarPadding, tarTrailer } from "../../../src/serve/tinker/checkpoint/tar.ts";

const textAt = (header: Uint8Array, at: number, length: number) =>
  new TextDecoder().decode(header.subarray(at, at + length));

test("a header has every field at its place", () => {
  const header = tarHeader("a/b.json", 1234);
  expect(header.length).toBe(512);
  expect(textAt(header, 0, 9)).toBe("a/b.json\0");
  expect(textAt(header, 100, 24)).toBe("0000644\x000000000\x000000000\0");
  expect(textAt(header, 124, 24)).toBe("00000002322\x0000000000000\0");
  expect(textAt(header, 257, 8)).toBe("ustar\x0000");
  const blank = header.slice().fill(32, 148, 156);
  const sum = blank.reduce((total, byte) => total + byte, 0);
  expect(textAt(header, 148, 8)).toBe(`${sum.toString(8).padStart(6, "0")}\0 `);
});

test("a name is cut at 100 bytes", () => {
  expect(textAt(tarHeader("x".repeat(101), 0), 0, 101)).toBe(`${"x".repeat(100)}0`);
});

test.each<[size: number, bytes: string]>([
  [0, "303030303030303030303000"],
  [8 ** 11 - 1, "373737373737373737373700"],
  [8 ** 11, "800000000000000200000000"],
  [2 ** 40 + 5, "800000000000010000000005"],
])("a size of %d is %s", (size, bytes) => {
  expect(Buffer.from(tarHeader("x", size).subarray(124, 136)).toString("hex")).toBe(bytes);
});

test.each([
  [0, 0],
  [1, 511],
  [511, 1],
  [512, 0],
  [513, 511],
])("a file of %i bytes is followed by %i zeros", (size, zeros) => {
  expect(tarPadding(size)).toEqual(new Uint8Array(zeros));
});

test("an archive ends with two empty blocks", () => {
  expect(tarTrailer()).toEqual(new Uint8Array(1024));
});
