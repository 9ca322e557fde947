import type { Io } from "./command.ts";

/** How this program is called here: from a checkout it is an npm script. */
export function commandName({ env }: Io): string {
  return env.npm_package_name === "grpu" ? "npm run -s grpu --" : "grpu";
}
