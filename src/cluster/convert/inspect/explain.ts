/** Explains one setting: meaning, type, defaults, other names, backends. */

import type { ComposeAttempt } from "../../../train/config/compose.ts";
import { BACKEND_FIELDS, BACKENDS } from "../../../train/config/fields/backend_fields.ts";
import {
  describeType,
  type Field,
  type FieldStatus,
  type FieldTarget,
  TARGETS,
} from "../../../train/config/fields/field.ts";
import { inline } from "../../../train/config/fields/render.ts";
import { RLLM_FIELDS } from "../../../train/config/fields/rllm.ts";
import { supportOn } from "../../../train/config/fields/support.ts";
import {
  allVerlLeaves,
  VERL_ENGINES,
  VERL_VERSIONS,
  verlField,
  verlLeaves,
} from "../../../train/config/fields/verl_tree.ts";
import { MASK } from "../../../train/config/mask.ts";
import { nearestPath } from "../../../train/config/problem.ts";
import { isSecret, maskValue } from "../../../train/config/secret.ts";
import { lineOf, originOf, readLayer } from "../../../train/config/yaml/layer.ts";
import { getAt } from "../../../train/config/yaml/tree.ts";
import { TRINITY_FIELDS } from "../trinity/fields.ts";
import { isTrinityPath, TRINITY_ORDER } from "../trinity/order.ts";
import { type Counterparts, counterpartsOf } from "./counterpart.ts";

export interface Explanation {
  readonly path: string;
  readonly meaning: string;
  readonly type: string;
  readonly note?: string | undefined;
  /** One default per file that has one. */
  readonly defaults: readonly { readonly value: string; readonly where: string }[];
  /** Value in a run with given files and overrides. */
  readonly value?: { readonly value: string; readonly where: string };
  readonly elsewhere: Counterparts;
  readonly backends: readonly {
    readonly backend: FieldTarget;
    readonly status: FieldStatus;
    readonly reason: string;
  }[];
}

type ReadConfig = (name: string) => string | undefined;

/** Explains a setting of any system; undefined when there is none of that name. */
export function explainSetting(path: string, readConfig: ReadConfig): Explanation | undefined {
  if (sectionSettings(path).length > 0) return undefined;
  const trinity = isTrinityPath(path) ? (TRINITY_FIELDS[path.replace(/\.\d+(?=\.|$)/g, "[]")] ?? null) : undefined;
  const places = packagedPlaces(path, readConfig);
  const ownRow = ownField(path) ?? places.find(({ field }) => field)?.field;
  const field = ownRow ?? trinity ?? undefined;
  if (field === undefined && trinity === undefined && places.length === 0) return undefined;
  const defaults = places.map(({ value, where }) => ({ value, where }));
  if (ownRow?.optional) defaults.unshift({ value: inline(ownRow.default), where: "where it is not set" });
  if (ownRow === undefined && trinity) defaults.push({ value: inline(trinity.default), where: "Trinity-RFT" });
  const isOurs = ownField(path) !== undefined || places.length > 0;
  return {
    path,
    meaning: field?.describe ?? "",
    type: field ? describeType(field) : "any value",
    note: field?.note,
    defaults,
    elsewhere: counterpartsOf(path),
    backends: isOurs ? TARGETS.map((backend) => supportLine(path, backend)) : [],
  };
}

function supportLine(path: string, backend: FieldTarget): Explanation["backends"][number] {
  const support = supportOn(path, backend);
  const isConverted = backend === "trinity" && support.status === "-" && counterpartsOf(path).trinity !== undefined;
  if (isConverted) return { backend, status: "forwarded", reason: "by grpu config convert" };
  return { backend, ...support };
}

function ownField(path: string): Field | undefined {
  const tables: Readonly<Record<string, Field>>[] = [RLLM_FIELDS, ...BACKENDS.map((name) => BACKEND_FIELDS[name])];
  return tables.find((table) => path in table)?.[path];
}

function packagedPlaces(path: string, readConfig: ReadConfig): { value: string; where: string; field?: Field }[] {
  const mounts = [["rllm/base.yaml", "rllm"], ...BACKENDS.map((name) => [`rllm/backend/${name}.yaml`, ""])];
  const found: { value: string; where: string; field?: Field }[] = [];
  for (const [name, mount] of mounts) {
    const file = `config/${name}`;
    const layer = readLayer(readConfig(name!) ?? "", { file, level: 1, mount });
    const value = getAt(layer.tree, path);
    if (value === undefined) continue;
    const shown = isSecret(path) ? MASK : inline(value);
    found.push({ value: shown, where: `${file}:${lineOf(layer.lines, path)}` });
  }
  for (const version of VERL_VERSIONS) {
    const native = VERL_ENGINES[version]!.map((engine) => verlLeaves(readConfig, version, engine).get(path)).find(
      (leaf) => leaf !== undefined,
    );
    if (native === undefined) continue;
    const { value, where } = native;
    found.push({ value: inline(value), where, field: verlField(path, value) });
  }
  return found;
}

/** The settings of ours in a section, each with its default and meaning. */
export function sectionSettings(section: string): { path: string; field: Field }[] {
  const tables: Readonly<Record<string, Field>>[] = [RLLM_FIELDS, ...BACKENDS.map((name) => BACKEND_FIELDS[name])];
  const fields = Object.entries(Object.assign({}, ...[...tables].reverse()) as Record<string, Field>);
  return fields
    .filter(([path]) => path.startsWith(`${section}.`) && !path.endsWith(".*"))
    .map(([path, field]) => ({ path, field }));
}

/** A section as a list of its settings. */
export function formatSection(section: string): string {
  const rows = sectionSettings(section).map(({ path, field }) => {
    const value = field.secret ? MASK : inline(field.default);
    return { path, text: `${field.describe} (${describeType(field)}; ${value})` };
  });
  const width = Math.max(...rows.map(({ path }) => path.length)) + 2;
  return rows.map(({ path, text }) => `${path.padEnd(width)}${text}\n`).join("");
}

/** The value of a setting in a composed configuration. */
export function valueInRun(
  path: string,
  { config, origins }: Pick<ComposeAttempt, "config" | "origins">,
): Explanation["value"] {
  const value = getAt(config, path);
  if (value === undefined) return undefined;
  return { value: inline(maskValue(path, value)), where: originOf(origins, path)?.text ?? "default" };
}

/** The known path closest to one that does not exist. */
export function nearestSetting(path: string, readConfig: ReadConfig): string | undefined {
  const paths = [RLLM_FIELDS, ...BACKENDS.map((name) => BACKEND_FIELDS[name])].flatMap((table) => Object.keys(table));
  const native = allVerlLeaves(readConfig).keys();
  return nearestPath(path, [...paths, ...native, ...TRINITY_ORDER]);
}

/** An explanation as text. */
export function formatExplanation(about: Explanation): string {
  const lines = [about.path];
  if (about.meaning) lines.push(`  ${about.meaning.charAt(0).toUpperCase()}${about.meaning.slice(1)}.`);
  lines.push("", `  Type      ${about.type}`);
  about.defaults.forEach(({ value, where }, i) => {
    lines.push(`  ${i === 0 ? "Default " : "        "}  ${value}  (${where})`);
  });
  if (about.value) lines.push(`  Here      ${about.value.value}  (${about.value.where})`);
  if (about.note) lines.push(`  Note      ${about.note}`);
  const names = Object.entries(about.elsewhere);
  if (names.length > 0) lines.push("", "  Elsewhere");
  for (const [system, name] of names) lines.push(`    ${system.padEnd(8)}${name}`);
  if (about.backends.length > 0) lines.push("", "  Backends");
  for (const { backend, status, reason } of about.backends) {
    lines.push(
      `    ${backend.padEnd(8)}${status === "-" ? "-" : status.padEnd(10)}${status === "-" ? `         ${reason}` : reason}`,
    );
  }
  return `${lines.join("\n")}\n`;
}
