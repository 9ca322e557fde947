/** A job's working directory as Ray takes it: a zip archive that is named by the hash of what it holds. */
import { type Zippable, zipSync } from "fflate";
import { ConfigError } from "../../leaves/errors.ts";

export interface Package {
  /** `_ray_pkg_HASH.zip`: the same files give the same name. */
  readonly name: string;
  readonly bytes: Uint8Array;
}

/** Largest package that the cluster's store takes. */
const MOST_MIB = 512;

/** No time of a file shows in the archive, so that its bytes depend on names and contents alone. The oldest that zip knows. */
const MTIME = new Date(1980, 0, 1);
/** Regular files that everyone may read, in the attributes of Unix (`os` 3). */
const ATTRIBUTES = { os: 3, attrs: (0o100644 << 16) >>> 0, mtime: MTIME, level: 6 } as const;

/** @throws {ConfigError} for a path that leaves the directory, and for more than 512 MiB. */
export async function packageFiles(files: ReadonlyMap<string, Uint8Array>): Promise<Package> {
  const paths = [...files.keys()].sort();
  for (const path of paths) checkPath(path);
  const entries: Zippable = Object.fromEntries(paths.map((path) => [path, [files.get(path)!, ATTRIBUTES]]));
  const bytes = zipSync(entries);
  checkSize(bytes);
  return { name: `_ray_pkg_${await hashOf(paths, files)}.zip`, bytes };
}

/** @throws {ConfigError} for an archive of more than 512 MiB. */
export function checkSize({ length }: Pick<Uint8Array, "length">): void {
  const mebibytes = length / 2 ** 20;
  if (mebibytes <= MOST_MIB) return;
  throw new ConfigError(
    `Cannot package the job: its files are larger than a Ray cluster takes (${Math.ceil(mebibytes)} MiB zipped, of ${MOST_MIB}). Put large files on storage that the cluster reads.`,
  );
}

function checkPath(path: string): void {
  const parts = path.split("/");
  if (!path.includes("\\") && parts.every((part) => part !== "" && part !== "." && part !== "..")) return;
  throw new ConfigError(
    `Cannot package the file ${JSON.stringify(path)}: its path is not relative to the job's directory. Name it with forward slashes, without . and ..`,
  );
}

/** SHA-256 over each file's path and hash: it does not depend on how the archive is compressed. */
async function hashOf(paths: readonly string[], files: ReadonlyMap<string, Uint8Array>): Promise<string> {
  const lines: string[] = [];
  for (const path of paths) lines.push(`${JSON.stringify(path)} ${await sha256(files.get(path)!)}`);
  return sha256(new TextEncoder().encode(lines.join("\n")));
}

async function sha256(bytes: Uint8Array): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
