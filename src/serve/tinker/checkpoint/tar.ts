/** The parts of a tar archive (POSIX ustar) of regular files. */

const BLOCK = 512;
/** Sizes from here on exceed the octal field and are written in base 256. */
const OCTAL_SIZE_LIMIT = 8 ** 11;

/** @param name at most 100 bytes of ASCII. */
export function tarHeader(name: string, size: number): Uint8Array {
  const header = new Uint8Array(BLOCK);
  const put = (text: string, at: number) => header.set(new TextEncoder().encode(text), at);
  put(name.slice(0, 100), 0);
  put("0000644\0", 100);
  put("0000000\0", 108);
  put("0000000\0", 116);
  putSize(header, size);
  put("00000000000\0", 136);
  put("        0", 148);
  put("ustar\x0000", 257);
  const sum = header.reduce((total, byte) => total + byte, 0);
  put(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return header;
}

function putSize(header: Uint8Array, size: number): void {
  if (size < OCTAL_SIZE_LIMIT) {
    header.set(new TextEncoder().encode(`${size.toString(8).padStart(11, "0")}\0`), 124);
    return;
  }
  header[124] = 0x80;
  for (let i = 11, rest = size; i > 0; i--, rest = Math.floor(rest / 256)) header[124 + i] = rest % 256;
}

/** Fills the last block of a file. */
export function tarPadding(size: number): Uint8Array {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}

export function tarTrailer(): Uint8Array {
  return new Uint8Array(2 * BLOCK);
}
