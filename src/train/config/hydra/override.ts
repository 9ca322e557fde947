/**
 * Command-line overrides in Hydra's grammar: `key=value`, `+key=value`, `++key=value`, `~key`, `~key=value`,
 * and `group=choice` where the key has a slash. Beyond Hydra, a key may hold `[0]`, and `\\.` for a dot in a name.
 */
import { ConfigError } from "../../../leaves/errors.ts";
import type { YamlValue } from "../yaml/tree.ts";
import { readValue } from "./parse_value.ts";
import { BadValue } from "./parsed_value.ts";

export interface Override {
  /** `set` needs the key to exist, `add` needs it not to, `force` is either, `delete` removes. */
  readonly kind: "set" | "add" | "force" | "delete" | "group";
  readonly key: string;
  /** Absent for `~key`. */
  readonly value?: YamlValue;
  /** Override as it was typed. */
  readonly text: string;
}

/** Groups without a slash in their name, which a setting could have too. */
const TOP_GROUPS = ["verl", "model_engine", "preset"];

const NAME = "(?:[A-Za-z_$](?:[\\w$-]|\\\\\\.)*|0|[1-9]\\d*)(?:\\[\\d+\\])*";
const KEY = new RegExp(`^(?!\\d+$)${NAME}(?:\\.${NAME})*$`);
const GROUP = /^\/?[A-Za-z_][\w-]*(?:\/[A-Za-z_][\w-]*)*(?:@[\w.$-]*)?$/;

/** @throws {ConfigError} that quotes the override and suggests a correct one. */
export function parseOverride(text: string): Override {
  const match = /^(~|\+\+|\+)?([^=]*)(?:=([\s\S]*))?$/.exec(text);
  const [, sign = "", key = "", rawValue] = match ?? [];
  if (!KEY.test(key) && !GROUP.test(key)) {
    throw new ConfigError(`Cannot read the override: it has no setting's name (${text}). Write key=value.`);
  }
  if (rawValue === undefined && sign !== "~") {
    throw new ConfigError(`Cannot read the override: it has no value (${text}). Write ${key}=value, or ${key}=null.`);
  }
  if (/[/@]/.test(key) || TOP_GROUPS.includes(key)) return groupOverride(text, sign, key, rawValue ?? "");
  const kind = sign === "~" ? "delete" : sign === "++" ? "force" : sign === "+" ? "add" : "set";
  if (rawValue === undefined) return { kind, key, text };
  return { kind, key, value: parseValue(rawValue, text), text };
}

function groupOverride(text: string, sign: string, key: string, value: string): Override {
  if (sign === "~" || key.includes("@")) {
    throw new ConfigError(
      `Cannot apply the override: groups can only be chosen (${text}). Write ${key.split("@")[0]}=NAME.`,
    );
  }
  return { kind: "group", key: key.replace(/^\//, ""), value: value.trim(), text };
}

/**
 * A value in Hydra's grammar.
 *
 * @param text the whole override, for the message
 * @throws {ConfigError} for what Hydra refuses, and for sweeps (`a,b`).
 */
export function parseValue(source: string, text: string = source): YamlValue {
  try {
    return readValue(source.replace(/^[ \t]+/, ""));
  } catch (error) {
    if (!(error instanceof BadValue)) throw error;
    throw new ConfigError(`Cannot read the override: it ${error.message} (${text}). ${error.advice}.`);
  }
}
