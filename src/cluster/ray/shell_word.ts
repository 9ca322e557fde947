/** A word for a POSIX shell: as it is, or in single quotes. */
export function quoteWord(word: string): string {
  return /^[\w./=:@,+%-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
