/** Settings of estimators and losses: the published names with their defaults, or a schema in their place. */
import { ConfigError } from "../../leaves/errors.ts";

/** Checks settings and fills in their defaults, or throws and says what is wrong. A zod schema is one. */
export interface SettingsSchema<S> {
  parse(settings: unknown): S;
}

interface Configurable<S> {
  readonly name: string;
  readonly settings: S;
  readonly schema?: SettingsSchema<S> | undefined;
}

/**
 * Puts the given settings over the defaults, or through the schema where there is one.
 * @param kind what is configured, for messages: `estimator`, `loss`
 * @throws {ConfigError} for an unknown setting, a value of another type than the default's, NaN, or what the schema refuses
 */
export function mergeSettings<S extends object>(kind: string, of: Configurable<S>, settings: object): S {
  const what = `the ${kind} ${of.name}`;
  if (of.schema) return parseSettings(of.schema, settings, what);
  for (const [key, value] of Object.entries(settings)) checkSetting(key, value, { what, defaults: of.settings });
  return { ...of.settings, ...settings };
}

function checkSetting(key: string, value: unknown, of: { what: string; defaults: object }): void {
  const fail = (why: string) => new ConfigError(`Cannot set ${key} of ${of.what}: ${why}.`, { path: key });
  const merged = new Map(Object.entries(of.defaults));
  if (!merged.has(key)) throw fail(`it has ${[...merged.keys()].join(", ") || "no settings"}`);
  const type = typeof merged.get(key);
  if (typeof value !== type || Number.isNaN(value)) throw fail(`it takes a ${type} (${value})`);
}

/** zod's errors carry one message per setting; other schemas are quoted. */
function parseSettings<S>(schema: SettingsSchema<S>, settings: unknown, what: string): S {
  try {
    return schema.parse(settings);
  } catch (error) {
    const { issues, message } = error as {
      message: string;
      issues?: readonly { path: readonly PropertyKey[]; message: string }[];
    };
    const why = issues?.map((issue) => `${issue.path.join(".")}: ${issue.message}`).join("; ") ?? message;
    throw new ConfigError(`Cannot set the settings of ${what}: its schema refuses them (${why}).`, {
      path: issues?.[0]?.path.join("."),
    });
  }
}
