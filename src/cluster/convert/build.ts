/** The state of one conversion: the source, the values written so far, notes and problems. */
import type { Problem } from "../../train/config/problem.ts";
import type { YamlValue } from "../../train/config/yaml/tree.ts";
import type { Converted, ConvertedSource, ConvertOptions, Note, NoteKind, OutValue, SourceValue } from "./contract.ts";

export class Build implements Converted {
  readonly values = new Map<string, OutValue>();
  readonly notes: Note[] = [];
  readonly problems: Problem[] = [];
  readonly used = new Set<string>();
  readonly source: ConvertedSource;
  readonly options: Required<ConvertOptions>;

  constructor(source: ConvertedSource, options: ConvertOptions) {
    this.source = source;
    this.options = {
      target: "legacy",
      cadence: "copy",
      pin: false,
      verlDefaults: new Map(),
      profile: new Map(),
      ...options,
    };
    this.problems.push(...source.problems);
  }

  has(path: string): boolean {
    return this.source.values.has(path);
  }

  /** A value without counting it as converted. */
  peek(path: string): YamlValue | undefined {
    return this.source.values.get(path)?.value;
  }

  /** A value that is converted here. */
  take(path: string): YamlValue | undefined {
    if (this.has(path)) this.used.add(path);
    return this.peek(path);
  }

  put(
    path: string,
    value: YamlValue,
    about: { kind: NoteKind; from?: readonly string[]; message?: string | undefined },
  ): void {
    const { kind, from = [], message } = about;
    this.values.set(path, { value, from });
    this.notes.push({
      kind,
      from: from.join(" + ") || undefined,
      to: path,
      value,
      message,
      line: this.lineOf(from[0]),
    });
  }

  drop(path: string, message: string): void {
    const value = this.take(path);
    this.notes.push({ kind: "dropped", from: path, value, message, line: this.lineOf(path) });
  }

  check(message: string, path?: string): void {
    this.notes.push({ kind: "check", from: path, message, line: this.lineOf(path) });
  }

  fail(message: string, path?: string): void {
    const place = path === undefined ? undefined : this.source.values.get(path);
    this.problems.push({ severity: "error", message, path, file: place?.file, line: place?.line });
  }

  /** Paths that no rule has converted yet, in the order of the source. */
  rest(): [path: string, value: SourceValue][] {
    return [...this.source.values].filter(([path]) => !this.used.has(path));
  }

  /** Lays the profile over what was computed. */
  applyProfile(): void {
    for (const [path, value] of this.options.profile) this.put(path, value, { kind: "profile" });
  }

  private lineOf(path: string | undefined): number | undefined {
    return path === undefined ? undefined : this.source.values.get(path)?.line;
  }
}
