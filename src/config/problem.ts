/** What is wrong with a configuration, collected so that all of it is told at once. */
import { ConfigError } from "../errors.ts";

export interface Problem {
  readonly severity: "error" | "warning";
  readonly message: string;
  /** The setting it is about. */
  readonly path?: string;
  readonly file?: string;
  /** 1-based. */
  readonly line?: number;
}

/** `run.yaml:3: error: Cannot ...`, the form that editors and terminals link. */
export function formatProblem({ file, line, severity, message }: Problem): string {
  const place = file ? (line ? `${file}:${line}: ` : `${file}: `) : "";
  return `${place}${severity}: ${message}`;
}

/**
 * Ends with one error that holds every problem of severity `error`; returns when there is none.
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
  throw new ConfigError(`Cannot use this configuration as it has ${errors.length} problems:\n${list}`, {
    kind: "config",
  });
}

/** The candidate closest to a name by edit distance, when it is close enough to be meant. */
export function nearest(name: string, candidates: Iterable<string>): string | undefined {
  let best: string | undefined;
  let bestScore = Math.max(2, Math.ceil(name.length * 0.34));
  for (const candidate of candidates) {
    if (Math.abs(candidate.length - name.length) > bestScore + 12) continue;
    const score = distance(name, candidate, bestScore);
    if (score < bestScore || (score === bestScore && best === undefined)) {
      best = candidate;
      bestScore = score;
    }
  }
  return best;
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

/** Edit distance with adjacent swaps (optimal string alignment); gives up above `limit`. */
function distance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) > limit) return limit + 1;
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    let smallest = i;
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let cost = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        cost = Math.min(cost, before[j - 2]! + 1);
      }
      next.push(cost);
      smallest = Math.min(smallest, cost);
    }
    if (smallest > limit) return limit + 1;
    before = row;
    row = next;
  }
  return row[b.length]!;
}
