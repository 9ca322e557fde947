/** The words of a run's configuration: files, and settings that override theirs. */

/** Splits positional arguments into files and overrides: an override has a `=` or starts with `~`. */
export function splitArguments(args: readonly string[]): { files: string[]; overrides: string[] } {
  const isOverride = (arg: string) => arg.includes("=") || arg.startsWith("~");
  return { files: args.filter((arg) => !isOverride(arg)), overrides: args.filter(isOverride) };
}
