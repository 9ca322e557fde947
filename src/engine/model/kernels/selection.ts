/** How top-k and top-p find the smallest logit kept, in the reference: decode/parts/selection.wgsl. */
import { SETTING_FLOATS } from "./sample.ts";
import { segmentCount } from "./segments.ts";

/**
 * Floats per (row, segment) that sampling keeps: highest logit / temperature, sum of exp(x - highest), best logit, its id; the sum
 * over the logits kept, the least of these, 0, 0.
 */
export const SEGMENT_FLOATS = 8;
const BINS = 256;
const LIMBS = 3;
/** Four bytes of the key by count, four by mass. */
export const SELECTION_STEPS = 8;
const BYTES = SELECTION_STEPS / 2;
/** Words of a row's histograms. */
export const HISTOGRAM_WORDS = SELECTION_STEPS * LIMBS * BINS;
export const CHOICE_WORDS = SELECTION_STEPS * 4;

/** A row's settings as `drawToken` takes them. */
export function settingOf(settings: Float32Array, row: number) {
  const [temperature = 0, topP = 0, topK = 0, inverse = 0] = settings.subarray(row * SETTING_FLOATS);
  return { greedy: temperature === 0, topP, topK, inverse };
}

/** Settled bytes, and the key below which all are out; count or mass above them, and what the kept ones must reach. */
interface Choice {
  readonly key: number;
  readonly floor: number;
  readonly above: number;
  readonly enough: number;
}

interface Buffers {
  readonly logits: Float32Array;
  readonly settings: Float32Array;
  readonly segments: Float32Array;
  readonly histograms: Uint32Array;
  readonly choices: Uint32Array;
}

interface Params {
  readonly first_row: number;
  readonly vocabulary: number;
  readonly stride: number;
}

/** The choice of one row. */
export class RowSelection {
  private readonly logits: Float32Array;
  private readonly setting: ReturnType<typeof settingOf>;
  private readonly highest: number;
  private readonly histograms: Uint32Array;
  private readonly choices: Uint32Array;
  private readonly choiceFloats: Float32Array;

  constructor(buffers: Buffers, { row, params }: { row: number; params: Params }) {
    const { logits, settings, segments, histograms, choices } = buffers;
    const { first_row, vocabulary, stride } = params;
    this.logits = logits.subarray(row * stride, row * stride + vocabulary);
    this.setting = settingOf(settings, first_row + row);
    const count = segmentCount(vocabulary);
    const highest = Array.from({ length: count }, (_, i) => segments[(row * count + i) * SEGMENT_FLOATS]!);
    this.highest = Math.max(...highest);
    this.histograms = histograms.subarray(row * HISTOGRAM_WORDS, (row + 1) * HISTOGRAM_WORDS);
    this.choices = choices.subarray(row * CHOICE_WORDS, (row + 1) * CHOICE_WORDS);
    this.choiceFloats = new Float32Array(this.choices.buffer, this.choices.byteOffset, CHOICE_WORDS);
  }

  private get byK(): boolean {
    const { greedy, topK } = this.setting;
    return !greedy && topK > 0 && topK < this.logits.length;
  }

  private get byP(): boolean {
    return !this.setting.greedy && this.setting.topP < 1;
  }

  get filters(): boolean {
    return this.byK || this.byP;
  }

  /** Counts the keys of a step, and keeps what it starts from. */
  count(step: number): void {
    const byCount = step < BYTES;
    if (!(byCount ? this.byK : this.byP)) return;
    const choice = this.before(step);
    this.keep(step, choice);
    const place = 256 ** (BYTES - 1 - (step % BYTES));
    const settled = Math.floor(choice.key / place / BINS);
    for (const logit of this.logits) {
      const key = keyOf(logit);
      if (key < choice.floor || Math.floor(key / place / BINS) !== settled) continue;
      const bin = Math.floor(key / place) % BINS;
      this.add(step, bin, byCount ? 1 : Math.exp(logit * this.setting.inverse - this.highest) * 2 ** 40);
    }
  }

  /** The smallest logit kept. */
  least(): number {
    if (!this.byP) return logitOf(this.settle(BYTES - 1).key);
    const { key, floor } = this.settle(SELECTION_STEPS - 1);
    return logitOf(Math.max(key, floor));
  }

  private before(step: number): Choice {
    if (step % BYTES !== 0) return this.settle(step - 1);
    if (step === 0) return { key: 0, floor: 0, above: 0, enough: Math.floor(this.setting.topK) };
    return { key: 0, floor: this.byK ? this.settle(BYTES - 1).key : 0, above: 0, enough: 0 };
  }

  /** The largest byte at which enough is reached. */
  private settle(step: number): Choice {
    const choice = this.kept(step);
    const values = Array.from({ length: BINS }, (_, bin) => this.value(step, bin));
    const total = values.reduce((sum, value) => sum + value, 0);
    const enough = step === BYTES ? Math.max(this.setting.topP * total, 1e-30) : choice.enough;
    let { above } = choice;
    let bin = BINS - 1;
    while (bin > 0 && above + values[bin]! < enough) above += values[bin--]!;
    return { ...choice, key: choice.key + bin * 256 ** (BYTES - 1 - (step % BYTES)), above, enough };
  }

  private keep(step: number, { key, floor, above, enough }: Choice): void {
    this.choices.set([key, floor], 4 * step);
    this.choiceFloats.set([above, enough], 4 * step + 2);
  }

  private kept(step: number): Choice {
    const [key = 0, floor = 0] = this.choices.subarray(4 * step);
    const [above = 0, enough = 0] = this.choiceFloats.subarray(4 * step + 2);
    return { key, floor, above, enough };
  }

  /** Adds units to a bin: its low 20 bits, the next 16, and the rest. A count has no more than the low ones. */
  private add(step: number, bin: number, units: number): void {
    const at = step * LIMBS * BINS + bin;
    const low = this.histograms[at]! + Math.floor(units % 2 ** 20);
    const middle = this.histograms[at + BINS]! + Math.floor(units / 2 ** 20) + Math.floor(low / 2 ** 20);
    this.histograms[at] = low % 2 ** 20;
    this.histograms[at + BINS] = middle % 2 ** 16;
    this.histograms[at + 2 * BINS]! += Math.floor(middle / 2 ** 16);
  }

  private value(step: number, bin: number): number {
    return binValue(this.histograms, step * LIMBS * BINS + bin, step < BYTES);
  }
}

/** Count, or mass, of the bin at `at`. */
export function binValue(histograms: Uint32Array, at: number, isCount: boolean): number {
  const [low, middle, high] = [histograms[at]!, histograms[at + BINS]!, histograms[at + 2 * BINS]!];
  return isCount ? low : low * 2 ** -40 + middle * 2 ** -20 + high * 2 ** -4;
}

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** Integers in the order of the floats. */
function keyOf(logit: number): number {
  float[0] = logit;
  return (word[0]! >= 2 ** 31 ? ~word[0]! : word[0]! ^ (2 ** 31)) >>> 0;
}

/** The float of a key, not below the lowest. */
function logitOf(key: number): number {
  word[0] = Math.max(key, keyOf(-3e38));
  word[0] = word[0]! >= 2 ** 31 ? word[0]! ^ (2 ** 31) : ~word[0]!;
  return float[0]!;
}
