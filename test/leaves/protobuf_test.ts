import { describe, expect, test } from "vitest";
import { RemoteError } from "../../src/leaves/errors.ts";
import {
  alignedCopy,
  bytesOf,
  concatBytes,
  fields,
  mapEntry,
  type ProtobufField,
  ProtobufWriter,
  packedVarints,
  packVarints,
} from "../../src/leaves/protobuf.ts";
import { uniform } from "../fixtures/numbers.ts";

describe("a varint is exact over 64 bits", () => {
  test.each([
    [1n, "0801"],
    [127n, "087f"],
    [128n, "088001"],
    [2n ** 32n, "088080808010"],
    [2n ** 53n + 1n, "088180808080808010"],
    [2n ** 63n - 1n, "08ffffffffffffffff7f"],
    [-1n, "08ffffffffffffffffff01"],
    [-(2n ** 63n), "0880808080808080808001"],
  ])("%d", (value, written) => {
    const bytes = new ProtobufWriter().varint(1, value).finish();
    expect(Buffer.from(bytes).toString("hex")).toBe(written);
    expect([...fields(bytes)]).toMatchObject([{ number: 1, varint: value }]);
  });
});

test("fields() reads every wire type, high field numbers and nested messages in their order", () => {
  const inner = new ProtobufWriter().text(1, "köln").varint(2 ** 28 - 1, 5);
  const bytes = new ProtobufWriter()
    .double(3, -0.1)
    .message(2, inner)
    .bytes(7, Uint8Array.of())
    .float(4, -0.5)
    .finish();
  const read = [...fields(bytes)];
  expect(read.map(({ number }) => number)).toEqual([3, 2, 7, 4]);
  expect(read[3]!.double).toBe(-0.5);
  expect(read[0]!.double).toBe(-0.1);
  const [name, count] = fields(read[1]!.bytes);
  expect(new TextDecoder().decode(name!.bytes)).toBe("köln");
  expect(count).toMatchObject({ number: 2 ** 28 - 1, varint: 5n });
  expect([...fields(bytesOfHex("0d0000803f"))]).toMatchObject([{ number: 1, double: 1 }]);
});

test("an entry of a map is read in any order, with fields that are unknown, and with none", () => {
  const entry = new ProtobufWriter().text(3, "c").varint(2, 5).text(1, "a").varint(4, 6).finish();
  expect(mapEntry(entry)).toMatchObject({ key: "a", value: { number: 2, varint: 5n } });
  expect(mapEntry(new Uint8Array())).toEqual({ key: "", value: undefined });
});

test("a varint of zero is left out, a float or double of zero is written", () => {
  const bytes = new ProtobufWriter().varint(1, 0).varint(2, 0n).float(3, 0).double(4, 0).finish();
  expect(Buffer.from(bytes).toString("hex")).toBe(`1d${"00".repeat(4)}21${"00".repeat(8)}`);
});

test("a message in the middle of a buffer is read where it lies", () => {
  const whole = bytesOfHex("ffff" + "090000000000002940" + "ff");
  expect([...fields(whole.subarray(2, 11))]).toMatchObject([{ number: 1, double: 12.5 }]);
});

describe("damaged messages end in a RemoteError", () => {
  test.each([
    ["a key is truncated", "80"],
    ["a number is truncated", "0880"],
    ["a number has eleven bytes", "08ffffffffffffffffffff01"],
    ["a double is truncated", "0900000000"],
    ["a float is truncated", "0d000000"],
    ["bytes are fewer than said", "0a05616263"],
    ["a length beyond 2^53", "0affffffffffffffff7f"],
    ["a negative length", "0affffffffffffffffff01"],
    ["a group", "0b0c"],
    ["wire type 6", "0e00"],
    ["wire type 7", "0f00"],
    ["field number 0", "0001"],
    ["a key of more than 32 bits, whose low bits are field 1's", "888080801001"],
  ])("%s", (_, hex) => {
    expect(() => [...fields(bytesOfHex(hex))]).toThrow(RemoteError);
  });
});

describe("packed numbers", () => {
  test.each([
    ["", []],
    ["00", [0n]],
    ["03ac02ffffffffffffffffff01", [3n, 300n, -1n]],
  ])("%s", (hex, values) => {
    expect(packedVarints(bytesOfHex(hex))).toEqual(values);
  });

  test.each(["80", "03ff", "ffffffffffffffffffff01"])("%s is damaged", (hex) => {
    expect(() => packedVarints(bytesOfHex(hex))).toThrow(RemoteError);
  });
});

test("a budget of fields counts those of a message and of the messages in it", () => {
  const entry = new ProtobufWriter().text(1, "a").varint(2, 5).finish();
  const message = new ProtobufWriter().bytes(1, entry).varint(2, 1).finish();
  const read = (left: number) => {
    const count = { left };
    return [...fields(message, count)].map(({ number, bytes }) => number === 1 && mapEntry(bytes, count).key);
  };
  expect(read(4)).toEqual(["a", false]);
  expect(() => read(3)).toThrow("Cannot read the protobuf message: it has too many fields.");
  expect([...fields(message, { left: 2 })]).toHaveLength(2);
  expect(() => [...fields(message, { left: 1 })]).toThrow("too many fields");
});

test.each([
  [0, "00"],
  [2 ** 7 - 1, "7f"],
  [2 ** 7, "8001"],
  [2 ** 14 - 1, "ff7f"],
  [2 ** 14, "808001"],
  [2 ** 21 - 1, "ffff7f"],
  [2 ** 21, "80808001"],
  [2 ** 28 - 1, "ffffff7f"],
  [2 ** 28, "8080808001"],
])("packVarints() writes %i in as few bytes as it needs", (value, hex) => {
  expect(Buffer.from(packVarints([value])).toString("hex")).toBe(hex);
  expect(packedVarints(packVarints([value, 1]))).toEqual([BigInt(value), 1n]);
});

test("a part of a buffer as bytes shares it, and as an aligned copy does not", () => {
  const numbers = Uint32Array.of(1, 2, 3);
  const bytes = bytesOf(numbers.subarray(1, 2));
  expect([...bytes]).toEqual([2, 0, 0, 0]);
  bytes[0] = 9;
  expect(numbers[1]).toBe(9);
  const copy = alignedCopy(bytes);
  expect(copy.byteLength).toBe(4);
  bytes[0] = 5;
  expect(new Uint32Array(copy)[0]).toBe(9);
  expect([...concatBytes([bytes, Uint8Array.of(), Uint8Array.of(7)])]).toEqual([5, 0, 0, 0, 7]);
});

test.each([
  ["08", /a number is truncated/],
  ["0a026100", /^ok$/],
  ["0a0261", /field 1 is truncated/],
  ["1100000000", /field 2 is truncated/],
  ["1d0000", /field 3 is truncated/],
  ["0001", /a field has no number/],
  ["0b", /field 1 has the unsupported wire type 3/],
])("%s: %s", (hex, message) => {
  const read = () => [...fields(bytesOfHex(hex))];
  if (message.test("ok")) expect(read).not.toThrow();
  else expect(read).toThrow(message);
});

test("20,000 random messages are read or refused, to the end and without more bytes than were given", () => {
  const next = uniform(11);
  let read = 0;
  for (let i = 0; i < 20_000; i++) {
    const bytes = Uint8Array.from({ length: next() * 40 }, () => next() * 256);
    try {
      const all: ProtobufField[] = [...fields(bytes)];
      expect(all.reduce((sum, field) => sum + field.bytes.length, 0)).toBeLessThanOrEqual(bytes.length);
      read++;
    } catch (error) {
      if (!(error instanceof RemoteError)) throw error;
    }
  }
  expect(read).toBeGreaterThan(500);
  expect(read).toBeLessThan(19_000);
});

function bytesOfHex(hex: string): Uint8Array {
  return Uint8Array.from(Buffer.from(hex, "hex"));
}
