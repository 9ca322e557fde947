import type { Command, Input, Io } from "../command.ts";

export const supportCommand: Command = {
  path: "config support",
  summary: "list what each backend does with each setting",
  options: [
    {
      flag: "--backend",
      value: "NAME",
      describe: "only this one",
      choices: ["local", "tinker", "verl", "trinity"],
    },
    { flag: "--json", describe: "print JSON" },
  ],
  examples: ["grpu config support", "grpu config support --backend tinker"],
  run: support,
};

async function support({ options }: Input, io: Io): Promise<number> {
  const [{ supportTable }, { TARGETS }] = await Promise.all([
    import("../../train/config/fields/support.ts"),
    import("../../train/config/fields/field.ts"),
  ]);
  const targets = TARGETS.filter((target) => options.backend === undefined || target === options.backend);
  const table = supportTable();
  if (options.json === true) {
    io.out(`${JSON.stringify(table, null, 2)}\n`);
    return 0;
  }
  const rows = table.filter(({ on }) => targets.some((target) => on[target].status !== "-"));
  const width = Math.max(...rows.map(({ pattern }) => pattern.length)) + 2;
  io.out(`${"setting".padEnd(width)}${targets.map((target) => target.padEnd(11)).join("")}why\n`);
  for (const { pattern, on } of rows) {
    const present = targets.filter((target) => on[target].status !== "-");
    const reasons = [...new Set(present.map((target) => on[target].reason))];
    const why = reasons.map((reason) => {
      const those = present.filter((target) => on[target].reason === reason);
      return reasons.length === 1 ? reason : `${those.join(", ")}: ${reason}`;
    });
    const statuses = targets.map((target) => on[target].status.padEnd(11)).join("");
    io.out(`${pattern.padEnd(width)}${statuses}${why.join("; ")}\n`);
  }
  return 0;
}
