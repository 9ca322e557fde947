/** Quotes a word for a shell: as it is, or in single quotes. */
export function quoted(word: string): string {
  return /^[\w./=:@,+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
