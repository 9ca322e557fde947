/** `grpu config ...`: show, validate, explain, compare and convert configurations. */
import type { Command } from "../command.ts";
import { convertCommand } from "./config_convert.ts";
import { diffCommand } from "./config_diff.ts";
import { explainCommand } from "./config_explain.ts";
import { showCommand } from "./config_show.ts";
import { supportCommand } from "./config_support.ts";
import { validateCommand } from "./config_validate.ts";

export const configCommands: readonly Command[] = [
  showCommand,
  validateCommand,
  explainCommand,
  diffCommand,
  convertCommand,
  supportCommand,
];
