/** The work that one comparison may cost: an answer can ask for any amount of it in a few characters. */

/** Most units of work: about a tenth of a second of big integers and of decimals with many digits. */
const MOST_UNITS = 150_000;

/** Bits of an exact number: 10,000 digits have 33,000. */
const MOST_BITS = 1 << 17;

/** Thrown for a value that is not computed: it is too large, undefined, or of no number. */
export class NoValue extends Error {
  override readonly name = "NoValue";
}

export class WorkBudget {
  private left = MOST_UNITS;

  /** @throws {NoValue} where the work is spent */
  spend(units: number): void {
    this.left -= units;
    if (!(this.left >= 0)) throw new NoValue();
  }

  /** Spends the work of a product of integers with so many bits. */
  multiply(a: number, b: number): void {
    if (!(a + b <= MOST_BITS)) throw new NoValue();
    this.spend(1 + (a * b) / 1e6);
  }
}

export function bitsOf(value: bigint): number {
  return value.toString(16).length * 4;
}
