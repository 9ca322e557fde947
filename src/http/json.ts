/** JSON from strangers. */
import { Refusal } from "./refusal.ts";

export interface JsonLimits {
  /** Arrays and objects within one another. */
  readonly depth: number;
  /** Values altogether, keys not counted. */
  readonly values: number;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const OPENING = [0x5b, 0x7b];
const CLOSING = [0x5d, 0x7d];

/**
 * Refuses JSON that would take long or that code which goes down into it could not return from, before it is parsed.
 * Looks at brackets, commas and quotes alone. @throws Refusal 422
 */
export function checkJson(bytes: Uint8Array, { depth: most, values }: JsonLimits): void {
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
}

function tooMuch(what: string): Refusal {
  return new Refusal(422, `Cannot read the request: its JSON may hold ${what} at most.`);
}
