/** Limits on JSON of untrusted clients. */
import { SLICE_BYTES, yieldToEventLoop } from "./event_loop.ts";
import { Refusal } from "./refusal.ts";

export interface JsonLimits {
  /** Nested arrays and objects. */
  readonly depth: number;
  /** All values, without keys. */
  readonly values: number;
  /** Numbers apart from these, which are read fast. Absent: there are none. */
  readonly numbers?: NumberLists | undefined;
}

/** Lists of numbers, and lists of those, such as token ids. */
export interface NumberLists {
  readonly most: number;
  /** The keys that have them, in objects at this level; the root is level 1. */
  readonly keys: readonly string[];
  readonly level: number;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const SPACE = 0x20;
const ZERO = 0x30;
const NINE = 0x39;

/** The most digits of a number, as Python reads integers: a longer one takes long to parse. */
const MOST_DIGITS = 4300;

/** Nesting that a byte opens or closes. */
const OPENS = new Uint8Array(256);
const CLOSES = new Uint8Array(256);
for (const [open, close] of [
  [0x5b, 0x5d],
  [0x7b, 0x7d],
] as const) {
  OPENS[open] = 1;
  CLOSES[close] = 1;
}
const OPENS_LIST = 0x5b;

/**
 * Refuses JSON with too many values or levels before it is parsed: parsing would take long, and recursive code would
 * overflow the stack. Reads only brackets, commas and quotes. @returns about how many values it has @throws Refusal 422
 */
export function checkJson(bytes: Uint8Array, limits: JsonLimits): number {
  const scan = new JsonScan(limits);
  scan.read(bytes);
  return scan.count;
}

/** Checks like {@link checkJson}, in slices. */
export async function checkJsonInTurns(bytes: Uint8Array, limits: JsonLimits): Promise<number> {
  const scan = new JsonScan(limits);
  for (let at = 0; at < bytes.length; at += SLICE_BYTES) {
    if (at > 0) await yieldToEventLoop();
    scan.read(bytes.subarray(at, at + SLICE_BYTES));
  }
  return scan.count;
}

class JsonScan {
  private readonly limits: JsonLimits;
  private readonly longestKey: number;
  private values = 1;
  private numbers = 0;
  private depth = 0;
  private isText = false;
  private isEscaped = false;
  /** The start of the last text, at the level of {@link NumberLists.keys}. */
  private key = "";
  /** The level that a list of numbers began in; 0 outside of one. */
  private listLevel = 0;
  /** The last byte that is no space. */
  private last = 0;
  /** Digits of the number that ends here. */
  private digits = 0;

  constructor(limits: JsonLimits) {
    this.limits = limits;
    this.longestKey = Math.max(0, ...(limits.numbers?.keys ?? []).map(({ length }) => length));
  }

  get count(): number {
    return this.values + this.numbers;
  }

  read(bytes: Uint8Array): void {
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes[i]!;
      if (!this.isText) {
        if (isDigit(byte)) this.addDigit();
        else this.digits = 0;
        if (byte > SPACE) this.mark(byte);
      } else if (this.isEscaped) this.isEscaped = false;
      else if (byte === BACKSLASH) this.isEscaped = true;
      else if (byte === QUOTE) this.isText = false;
      else if (this.key.length <= this.longestKey) this.key += String.fromCharCode(byte);
    }
  }

  private addDigit(): void {
    if (++this.digits > MOST_DIGITS) throw tooMuch(`${MOST_DIGITS} digits in a number`);
  }

  private mark(byte: number): void {
    if (byte === QUOTE) {
      this.isText = true;
      // Longer than any key where it is no key.
      this.key = this.depth === this.limits.numbers?.level ? "" : " ".repeat(this.longestKey + 1);
    } else if (byte === COMMA) this.add(this.listLevel > 0 && this.last <= NINE && this.last > COMMA);
    else if (OPENS[byte]) this.open(byte === OPENS_LIST);
    else if (CLOSES[byte]) {
      if (--this.depth <= this.listLevel) this.listLevel = 0;
    }
    this.last = byte;
  }

  private open(isList: boolean): void {
    const { depth, numbers } = this.limits;
    if (!isList) this.listLevel = 0;
    else if (this.last === COLON && this.depth === numbers?.level && numbers.keys.includes(this.key))
      this.listLevel = this.depth;
    this.add(false);
    if (++this.depth > depth) throw tooMuch(`${depth} levels`);
  }

  private add(isNumber: boolean): void {
    const { values, numbers } = this.limits;
    if (isNumber) this.numbers++;
    else this.values++;
    if (this.values > values) throw tooMuch(`${values} values`);
    if (numbers && this.numbers > numbers.most) throw tooMuch(`${numbers.most} numbers in its lists`);
  }
}

function isDigit(byte: number): boolean {
  return byte <= NINE && byte >= ZERO;
}

function tooMuch(what: string): Refusal {
  return new Refusal(422, `Cannot read the request: its JSON has more than ${what}. Send it in smaller parts.`);
}
