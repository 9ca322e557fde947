/** The wire format of protocol buffers, as much as logs need. @see https://protobuf.dev/programming-guides/encoding */

const WIRE = { varint: 0, double: 1, bytes: 2, float: 5 } as const;

function key(field: number, wire: number): Uint8Array {
  return varint(field * 8 + wire);
}

function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return Uint8Array.from([...bytes, rest]);
    bytes.push((rest % 128) + 128);
  }
}

export function varintField(field: number, value: number): Uint8Array {
  return joined([key(field, WIRE.varint), varint(value)]);
}

export function bytesField(field: number, bytes: Uint8Array): Uint8Array {
  return joined([key(field, WIRE.bytes), varint(bytes.length), bytes]);
}

export function textField(field: number, text: string): Uint8Array {
  return bytesField(field, new TextEncoder().encode(text));
}

export function doubleField(field: number, value: number): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setFloat64(0, value, true);
  return joined([key(field, WIRE.double), bytes]);
}

export function floatField(field: number, value: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setFloat32(0, value, true);
  return joined([key(field, WIRE.float), bytes]);
}

export function joined(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
