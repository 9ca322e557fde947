/** A fingerprint of bytes that arrive in pieces. */

/**
 * Two FNV-1a hashes over words and remaining bytes, and the length; independent of how the bytes are cut into pieces.
 * Detects repeated requests; it is not cryptographic.
 */
export class Fingerprint {
  private a = 0x811c9dc5;
  private b = 0x01000193;
  private length = 0;
  /** Bytes of an incomplete word. */
  private rest: Uint8Array = new Uint8Array();

  add(piece: Uint8Array): void {
    this.length += piece.length;
    const bytes = this.rest.length === 0 && piece.byteOffset % 4 === 0 ? piece : joined(this.rest, piece);
    const words = bytes.length >>> 2;
    for (const word of new Uint32Array(bytes.buffer, bytes.byteOffset, words)) this.mix(word);
    this.rest = bytes.slice(4 * words);
  }

  /** The fingerprint. Call it once, after the last piece. */
  text(): string {
    for (const byte of this.rest) this.mix(byte);
    return `${this.length}:${(this.a >>> 0).toString(36)}:${(this.b >>> 0).toString(36)}`;
  }

  private mix(word: number): void {
    let a = Math.imul(this.a ^ word, 0x01000193);
    let b = Math.imul(this.b ^ word, 0x85ebca6b) + 1;
    // Otherwise a word's high bits would not affect the lower ones.
    a ^= a >>> 15;
    b ^= b >>> 13;
    this.a = a;
    this.b = b;
  }
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
