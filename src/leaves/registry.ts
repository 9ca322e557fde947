/** Tables of values that modules register under a name and configurations choose by it. */
import { ConfigError } from "./errors.ts";
import { nearest } from "./nearest.ts";

export interface Registry<V> {
  /** @throws {ConfigError} for a reserved name, and for a taken one where names are unique. */
  register(name: string, value: V): void;
  get(name: string): V | undefined;
  has(name: string): boolean;
  /** @throws {ConfigError} for an unknown name; lists the known ones. `setting` replaces the registry's own in the error. */
  find(name: string, setting?: string): V;
  /** Returns the names in the order of registration. */
  names(): string[];
}

export interface RegistryOptions<V> {
  /** The setting that holds a name, for errors: `task.reward`. */
  readonly setting: string;
  readonly builtIn?: Iterable<readonly [name: string, value: V]>;
  /** Names with a meaning outside the table, which cannot be registered. */
  readonly reserved?: readonly string[];
  /** Refuse a taken name. Default: the last registration of a name counts. */
  readonly isUnique?: boolean;
}

/**
 * Opens the table of a kind (`reward`, `estimator`). It lives on the global object, so a user's module that loads a
 * second copy of grpu registers into the same table.
 */
export function createRegistry<V>(kind: string, options: RegistryOptions<V>): Registry<V> {
  const { setting, builtIn = [], reserved, isUnique = false } = options;
  const key = Symbol.for(`grpu.registry.${kind}`);
  const shared = globalThis as unknown as Record<symbol, Map<string, V> | undefined>;
  shared[key] ??= new Map(builtIn);
  const table: Map<string, V> = shared[key];
  return {
    register(name, value) {
      if (reserved?.includes(name) || (isUnique && table.has(name))) throw taken({ kind, name, setting });
      table.set(name, value);
    },
    get: (name) => table.get(name),
    has: (name) => table.has(name),
    find(name, path = setting) {
      const found = table.get(name);
      if (found === undefined) throw unknown({ kind, name, setting: path }, [...table.keys()]);
      return found;
    },
    names: () => [...table.keys()],
  };
}

interface Entry {
  readonly kind: string;
  readonly name: string;
  readonly setting: string;
}

function taken({ kind, name, setting }: Entry): ConfigError {
  return new ConfigError(`Cannot register the ${kind} ${name}: the name is taken. Choose another one.`, {
    path: setting,
  });
}

function unknown({ kind, name, setting }: Entry, names: readonly string[]): ConfigError {
  const close = nearest(name, names);
  const advice = close === undefined ? "" : ` (nearest: ${close})`;
  return new ConfigError(
    `Cannot use the ${kind} ${JSON.stringify(name)}: nothing registers that name${advice}. Known: ${names.join(", ") || "none"}. Register your own in a module given by --import.`,
    { path: setting },
  );
}
