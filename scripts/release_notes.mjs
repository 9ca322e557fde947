/**
 * Prints the section of CHANGELOG.md for a tag: `node scripts/release_notes.mjs v0.2.0`. Exits 1 unless the tag is the
 * version of package.json and the section has a date.
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), "utf8");

/** The text below `## [VERSION] - DATE`, up to the next version. */
export function notesOf(changelog, version) {
  const sections = changelog.split(/^## /m).slice(1);
  const section = sections.find((text) => text.startsWith(`[${version}] - `));
  if (!section) throw new Error(`Cannot release ${version}: CHANGELOG.md has no section "## [${version}] - DATE".`);
  const [head, ...lines] = section.split("\n");
  if (!/ - \d{4}-\d{2}-\d{2}$/.test(head))
    throw new Error(`Cannot release ${version}: its section has no date (${head}).`);
  return lines.join("\n").trim();
}

function main(tag = "") {
  const { version } = JSON.parse(read("package.json"));
  if (tag !== `v${version}`) throw new Error(`Cannot release ${tag}: package.json has the version ${version}.`);
  process.stdout.write(`${notesOf(read("CHANGELOG.md"), version)}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    main(process.argv[2]);
  } catch (error) {
    process.stderr.write(`${error.message}\n`);
    process.exitCode = 1;
  }
}
