/** Command lines that are shown to people. */
import type { Io } from "../command.ts";

/** Returns a word for a shell: as it is, or in single quotes. */
export function quoted(word: string): string {
  return /^[\w./=:@,+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** How this program is called here: from a checkout it is an npm script. */
export function commandName({ env }: Io): string {
  return env.npm_package_name === "grpu" ? "npm run -s grpu --" : "grpu";
}
