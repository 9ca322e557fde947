/** Reads the keys of a parsed config.json: each with its type, its default and an error that names the file. */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";

/** A parsed JSON object. */
export type RawConfig = Readonly<Record<string, unknown>>;

/** The keys of one JSON object of config.json. An absent key has the family's default; null is none, as in Python. */
export class Keys {
  readonly file: string;
  private readonly raw: RawConfig;
  private readonly defaults: RawConfig;
  private readonly within: string;

  /** @param options.within key of the object in config.json, for messages. */
  constructor(raw: RawConfig, options: { file: string; defaults?: RawConfig; within?: string }) {
    this.raw = raw;
    this.file = options.file;
    this.defaults = options.defaults ?? {};
    this.within = options.within ?? "";
  }

  /** The value in the file; undefined for null. */
  given(key: string): unknown {
    return this.raw[key] ?? undefined;
  }

  /** The value, or its default; undefined for null. */
  get(key: string): unknown {
    const value = this.raw[key] === undefined ? this.defaults[key] : this.raw[key];
    return value ?? undefined;
  }

  /** @throws ConfigError unless it is a positive number. */
  positive(key: string, fallback?: number): number {
    const value = this.get(key) ?? fallback;
    if (typeof value === "number" && value > 0 && Number.isFinite(value)) return value;
    throw value === undefined ? this.missing(key) : this.wrong(key, "must be a positive number");
  }

  /** @throws ConfigError unless it is a positive whole number. */
  count(key: string, fallback?: number): number {
    const value = this.positive(key, fallback);
    if (Number.isSafeInteger(value)) return value;
    throw this.wrong(key, "must be a whole number", value);
  }

  /** @throws ConfigError unless it is a whole number from 0 on. */
  whole(key: string): number {
    const value = this.get(key);
    if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
    throw value === undefined ? this.missing(key) : this.wrong(key, "must be a whole number");
  }

  /** True, false or absent, which is false. @throws ConfigError for anything else. */
  flag(key: string): boolean {
    const value = this.get(key) ?? false;
    if (typeof value === "boolean") return value;
    throw this.wrong(key, "must be true or false");
  }

  /** A list with an entry of `allowed` for each layer; undefined where absent. */
  perLayer<T>(key: string, allowed: readonly T[]): readonly T[] | undefined {
    const value = this.get(key);
    if (value === undefined) return undefined;
    const layers = this.count("num_hidden_layers");
    if (!Array.isArray(value) || value.length !== layers)
      throw this.wrong(key, `must have an entry for each of the ${layers} layers`);
    const other = value.findIndex((entry) => !allowed.includes(entry));
    if (other >= 0) throw this.unsupported(key, allowed, value[other]);
    return value;
  }

  /** One of `allowed`. @throws UnsupportedError for another value. */
  choice<T>(key: string, allowed: readonly T[]): T {
    const value = this.get(key) as T;
    if (allowed.includes(value)) return value;
    throw this.unsupported(key, allowed);
  }

  /** @throws UnsupportedError where the key has another value than these; absent is fine. */
  limit(key: string, allowed: readonly unknown[]): void {
    if (this.get(key) !== undefined && !allowed.includes(this.get(key))) throw this.unsupported(key, allowed);
  }

  /** The keys of an object; undefined where absent. */
  object(key: string): Keys | undefined {
    const value = this.get(key);
    if (value === undefined) return undefined;
    if (typeof value !== "object" || Array.isArray(value)) throw this.wrong(key, "must be an object");
    return new Keys(value as RawConfig, { file: this.file, within: this.path(key) });
  }

  /** One id, a list of ids or null: transformers writes all three. */
  tokenIds(key: string): number[] {
    const value = this.get(key) ?? [];
    const ids = Array.isArray(value) ? value : [value];
    if (ids.every((id) => Number.isSafeInteger(id) && id >= 0)) return ids;
    throw this.wrong(key, "must be a token id");
  }

  wrong(key: string, rule: string, value: unknown = this.get(key)): ConfigError {
    const path = this.path(key);
    const message = `Cannot read the model's configuration: ${path} ${rule} (${JSON.stringify(value)}).`;
    return new ConfigError(message, { file: this.file, path });
  }

  unsupported(key: string, allowed: readonly unknown[], value: unknown = this.get(key)): UnsupportedError {
    const path = this.path(key);
    const want = allowed.map((allowedValue) => JSON.stringify(allowedValue)).join(" or ");
    const shown = JSON.stringify(value);
    return new UnsupportedError(`Cannot load a model with ${path} ${shown}: supported is ${want} (${this.file}).`, {
      part: "model",
      capability: `${path}=${shown}`,
    });
  }

  private missing(key: string): ConfigError {
    const path = this.path(key);
    return new ConfigError(`Cannot read the model's configuration: ${path} is missing.`, { file: this.file, path });
  }

  private path(key: string): string {
    return this.within ? `${this.within}.${key}` : key;
  }
}
