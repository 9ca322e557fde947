/** Unicode as the `tokenizers` library has it: JavaScript's own white space, letters' case and normal forms differ. */

/** White space at the start and at the end of a text. JavaScript's `\s` has U+FEFF and lacks U+0085. */
const LEADING = /^\p{White_Space}+/u;
const TRAILING = /\p{White_Space}$/u;

export const trimStart = (text: string) => text.replace(LEADING, "");

/** Trims by steps from the end: a pattern for the whole run takes quadratic time where runs lie inside the text. */
export function trimEnd(text: string): string {
  let end = text.length;
  while (end > 0 && TRAILING.test(text[end - 1]!)) end--;
  return text.slice(0, end);
}

/** A letter at a time, so that a final sigma is one as any other. */
export function lowerCase(text: string): string {
  const lower = text.toLowerCase();
  return text.includes("\u03A3") ? Array.from(text, (each) => each.toLowerCase()).join("") : lower;
}

/**
 * Code points whose decomposition or combining class, or that of what they compose to, is younger than the tables of the library (Unicode 9): it leaves
 * them as they are, and what stands on both sides does not combine.
 */
const YOUNG =
  "7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1add 1ae0-1aeb 1df6-1dfa 32ff a7f1-a7f4 a82c ab69 105c9 105d2 105da 105e4 10781-10785 10787-107b0 107b2-107ba 10d24-10d27 10d69-10d6d 10eab-10eac 10efa-10efb 10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 11382-11385 1138b 1138e 11390-11391 113b8 113bb 113c2 113c5 113c7-113c9 113ce-113d0 1145e 11839-1183a 11930 11935 11938 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97 11f41-11f42 1611e-16129 1612f 16d63 16d67-16d6a 16ff0-16ff1 1ccd6-1ccf9 1e030-1e06d 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1f16c 1fbf0-1fbf9";

const YOUNG_RUN = new RegExp(`([${YOUNG.replace(/[0-9a-f]+/g, (code) => `\\u{${code}}`).replaceAll(" ", "")}]+)`, "u");

/** Young marks stay too. */
export function withoutMarks(text: string): string {
  return text.replace(/\p{M}/gu, (mark) => (YOUNG_RUN.test(mark) ? mark : ""));
}

export function normalForm(text: string, form: "NFC" | "NFD" | "NFKC" | "NFKD"): string {
  if (/^[\0-\x7f]*$/.test(text)) return text;
  // Odd parts are the runs.
  return text
    .split(YOUNG_RUN)
    .map((part, i) => (i % 2 === 1 ? part : part.normalize(form)))
    .join("");
}
