/**
 * Effects of each setting on each target, from the columns `on` and `why` of its row. Without them a portable setting
 * that has a name in verl is forwarded there and to Trinity, any other acts in the loop, and a backend's own setting
 * acts on that backend.
 */
import { BACKEND_FIELDS, isClusterBackend } from "./backend_fields.ts";
import { type Field, type FieldStatus, type FieldTable, type FieldTarget, TARGETS } from "./field.ts";
import { RLLM_FIELDS } from "./rllm.ts";
import { VERL_NOTES } from "./verl.ts";

const UNAVAILABLE: Readonly<Record<string, string>> = {
  "trinity dropped": "Trinity has no such setting; config convert leaves it out and reports that",
  "trinity refused": "Trinity has no such setting",
};
const VERLS_OWN = "part of verl's own tree, passed to verl unchanged";
const CONVERTED = "converted where Trinity has a counterpart; a run names what it leaves out";

export interface Support {
  readonly status: FieldStatus;
  /** Effect of the setting on the target, or the reason why it has none. */
  readonly reason: string;
}

const ABSENT: Support = { status: "-", reason: "has no such setting" };

/** Returns the effect of a setting on a target, `-` where the target has no such setting. */
export function supportOn(path: string, target: FieldTarget): Support {
  const portable = rowAt(RLLM_FIELDS, path);
  if (portable) {
    const statuses = portable.on ?? (portable.verl ? "acts acts forwarded forwarded" : "acts acts acts acts");
    return explained(portable, { target, status: statuses.split(" ")[TARGETS.indexOf(target)] as FieldStatus });
  }
  const row = rowAt(BACKEND_FIELDS[target], path);
  if (row?.on || (row && !isClusterBackend(target)))
    return explained(row, { target, status: (row.on ?? (row.same ? "forwarded" : "acts")) as FieldStatus });
  if (!isClusterBackend(target) || !isInVerlsTree(path)) return ABSENT;
  return { status: "forwarded", reason: target === "verl" ? VERLS_OWN : CONVERTED };
}

function explained({ why, same, describe }: Field, effect: { target: FieldTarget; status: FieldStatus }): Support {
  const { target, status } = effect;
  const usual = same ? `the same setting as ${same}` : describe;
  if (typeof why === "object" && why[target] !== undefined) return { status, reason: why[target] };
  const unavailable = UNAVAILABLE[`${target} ${status}`];
  if (unavailable !== undefined) return { status, reason: unavailable };
  return { status, reason: typeof why === "string" ? why : usual };
}

export const statusOf = (path: string, target: FieldTarget): FieldStatus => supportOn(path, target).status;
export const reasonOn = (path: string, target: FieldTarget): string => supportOn(path, target).reason;

/** The row of a setting, of the dict that contains it, or of the open section around it. */
function rowAt(fields: FieldTable, path: string): Field | undefined {
  for (let at = path; at !== ""; at = at.slice(0, Math.max(0, at.lastIndexOf(".")))) {
    const name = [at, `${at}.*`].find((key) => Object.hasOwn(fields, key));
    if (name) return fields[name];
  }
  return undefined;
}

/** Any name but those of the other backends alone may be verl's: its trees differ by version and engine. */
function isInVerlsTree(path: string): boolean {
  const isOthers = rowAt(BACKEND_FIELDS.local, path) ?? rowAt(BACKEND_FIELDS.tinker, path);
  return isOthers === undefined || path in VERL_NOTES;
}

/** One line of `config support`: a setting, or a section (`rllm.gateway.*`) whose settings all say the same. */
export interface SupportLine {
  readonly pattern: string;
  readonly on: Readonly<Record<FieldTarget, Support>>;
}

/** Every setting of ours in table order, then `*` for the rest of verl's tree. */
export function supportTable(): SupportLine[] {
  const tables: FieldTable[] = [RLLM_FIELDS, ...Object.values(BACKEND_FIELDS)];
  const paths = [...new Set(tables.flatMap((table) => Object.keys(table)))];
  const lines = paths.map((pattern) => ({ pattern, on: supportEverywhere(pattern) }));
  const folded = [...new Set(paths.map(sectionOf))].flatMap((section) => {
    const rows = lines.filter(({ pattern }) => sectionOf(pattern) === section);
    const isAlike = rows.length > 1 && new Set(rows.map(({ on }) => JSON.stringify(on))).size === 1;
    return isAlike ? [{ pattern: `${section}.*`, on: rows[0]!.on }] : rows;
  });
  return [...folded, { pattern: "*", on: supportEverywhere("*") }];
}

function supportEverywhere(path: string): SupportLine["on"] {
  return Object.fromEntries(TARGETS.map((target) => [target, supportOn(path, target)])) as SupportLine["on"];
}

/** `rllm.gateway` of `rllm.gateway.port`, `model` of `model.init.layers`. */
function sectionOf(path: string): string {
  return path
    .split(".")
    .slice(0, path.startsWith("rllm.") ? 2 : 1)
    .join(".");
}
