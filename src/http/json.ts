/** Limits on JSON of untrusted clients. */
import { Refusal } from "./refusal.ts";

export interface JsonLimits {
  /** Nested arrays and objects. */
  readonly depth: number;
  /** All values, without keys. */
  readonly values: number;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const OPENING = [0x5b, 0x7b];
const CLOSING = [0x5d, 0x7d];

/**
 * Refuses JSON with too many values or levels before it is parsed: parsing would take long, and recursive code would
 * overflow the stack. Reads only brackets, commas and quotes. @returns about how many values it has @throws Refusal 422
 */
export function checkJson(bytes: Uint8Array, { depth: most, values }: JsonLimits): number {
  let [depth, count, isText] = [0, 1, false];
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i]!;
    if (isText) {
      if (byte === BACKSLASH) i++;
      else if (byte === QUOTE) isText = false;
    } else if (byte === QUOTE) isText = true;
    else if (byte === COMMA) count++;
    else if (OPENING.includes(byte)) {
      count++;
      if (++depth > most) throw tooMuch(`${most} levels`);
    } else if (CLOSING.includes(byte)) depth--;
    if (count > values) throw tooMuch(`${values} values`);
  }
  return count;
}

function tooMuch(what: string): Refusal {
  return new Refusal(422, `Cannot read the request: its JSON has more than ${what}. Send it in smaller parts.`);
}
