/** Problems of a configuration, collected so that one error reports all of them. */
import { ConfigError } from "../../leaves/errors.ts";
import { nearest } from "../../leaves/nearest.ts";

export interface Problem {
  readonly severity: "error" | "warning";
  readonly message: string;
  /** The setting it is about. */
  readonly path?: string | undefined;
  readonly file?: string | undefined;
  /** 1-based. */
  readonly line?: number | undefined;
}

/** `run.yaml:3: error: Cannot ...`, the form that editors and terminals link. */
export function formatProblem({ file, line, severity, message }: Problem): string {
  const place = file ? (line ? `${file}:${line}: ` : `${file}: `) : "";
  return `${place}${severity}: ${message}`;
}

/**
 * Throws one error that lists every problem of severity `error`; returns when there is none.
 *
 * @throws {ConfigError} whose place is that of the first problem.
 */
export function throwProblems(problems: readonly Problem[]): void {
  const errors = problems.filter((problem) => problem.severity === "error");
  if (errors.length === 0) return;
  const [first] = errors;
  if (errors.length === 1) {
    throw new ConfigError(first!.message, { file: first!.file, line: first!.line, kind: "config" });
  }
  const list = errors.map((problem) => `  ${formatProblem(problem)}`).join("\n");
  throw new ConfigError(`Cannot use this configuration: it has ${errors.length} problems.\n${list}`, {
    kind: "config",
  });
}

/**
 * The known path closest to a path: by edit distance, or the one path that ends in the same last key.
 */
export function nearestPath(path: string, candidates: readonly string[]): string | undefined {
  const byDistance = nearest(path, candidates);
  if (byDistance !== undefined) return byDistance;
  const last = path.slice(path.lastIndexOf(".") + 1);
  const sameEnd = candidates.filter((candidate) => candidate.endsWith(`.${last}`) || candidate === last);
  return sameEnd.length === 1 || sameEnd.length === 2 ? sameEnd[0] : undefined;
}
