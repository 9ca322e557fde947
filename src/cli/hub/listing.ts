/** The files of a commit that a pull takes. The hub's list decides where on this disk is written, so it is checked first. */
import { ConfigError } from "../../leaves/errors.ts";
import { ask, type Hub, type HubFile } from "./access.ts";
import { checkNames, checkPath } from "./paths.ts";

export interface HubSelection {
  /** `owner/name` */
  readonly repo: string;
  /** Hash of the commit. */
  readonly sha: string;
  /** Globs of paths, as fnmatch has them: `*` crosses folders, and a `/` at the end takes the folder. None takes every file. */
  readonly include: readonly string[];
  readonly exclude: readonly string[];
}

/** A file whose path, size and digest are checked. */
export interface ListedFile {
  /** Relative, with `/`. */
  readonly path: string;
  readonly size: number;
  /** SHA-256 of a Git LFS file, else the SHA-1 of git's object, in hex. */
  readonly digest: string;
  readonly isLfs: boolean;
}

const MOST_FILES = 100_000;

/** @throws {ConfigError} for a list that names files outside of its folder, without digests, or without end, and where no file fits. */
export async function chosenFiles(hub: Hub, choice: HubSelection): Promise<readonly ListedFile[]> {
  const files = await ask(hub, (hubPackage, common) =>
    listed(hubPackage.listFiles({ ...common, ...listOf(choice), recursive: true })),
  );
  const [include, exclude] = [choice.include.map(globPattern), choice.exclude.map(globPattern)];
  const isAny = (globs: readonly RegExp[], path: string) => globs.some((glob) => glob.test(path));
  const chosen = files.filter(({ path }) => (include.length === 0 || isAny(include, path)) && !isAny(exclude, path));
  if (chosen.length === 0) throw noneFits(files);
  checkNames(chosen.map(({ path }) => path));
  return chosen;
}

/** The package puts the revision into the address as it is. */
const listOf = ({ repo, sha }: HubSelection) => ({ repo, revision: encodeURIComponent(sha) });

async function listed(files: AsyncIterable<HubFile>): Promise<ListedFile[]> {
  const list: ListedFile[] = [];
  let entries = 0;
  for await (const file of files) {
    if (file.type === "file") list.push(checked(file));
    // Folders too: a list of them alone may be endless.
    if (++entries > MOST_FILES)
      throw new ConfigError(
        `Cannot pull: the repository lists more than ${MOST_FILES} files and folders. Name another.`,
        {
          kind: "data",
        },
      );
  }
  return list;
}

function checked({ path, size, oid, lfs }: HubFile): ListedFile {
  checkPath(path);
  const digest = String(lfs?.oid ?? oid);
  const isWhole = Number.isSafeInteger(size) && size >= 0 && (lfs ? /^[0-9a-f]{64}$/ : /^[0-9a-f]{40}$/).test(digest);
  if (isWhole) return { path, size, digest, isLfs: lfs !== undefined };
  throw new ConfigError(
    `Cannot pull: the hub lists a file without its size or its digest (${path}, ${size}, ${digest}). Check HF_ENDPOINT.`,
    { kind: "data" },
  );
}

function noneFits(files: readonly ListedFile[]): ConfigError {
  const names = files.slice(0, 10).map(({ path }) => path);
  return new ConfigError(
    `Cannot pull: none of the repository's ${files.length} files fits --include and --exclude (${names.join(", ")}). Correct the globs.`,
    { kind: "usage" },
  );
}

/**
 * `*`, `?` and `[...]` as in Python's fnmatch, which Hugging Face's own clients use.
 * @throws {ConfigError} for a range that ends before it begins
 */
export function globPattern(glob: string): RegExp {
  const whole = glob.endsWith("/") ? `${glob}*` : glob;
  const source = whole.replace(/\[(!?)([^\]]+)\]|\*+|[\s\S]/g, (text, not: string | undefined, set?: string) => {
    if (set !== undefined) return `[${not ? "^" : ""}${set.replace(/[\\^]/g, "\\$&")}]`;
    return text.startsWith("*") ? ".*" : text === "?" ? "." : text.replace(/[.+^${}()|[\]\\/-]/g, "\\$&");
  });
  try {
    return new RegExp(`^${source}$`, "s");
  } catch {
    throw new ConfigError(`Cannot pull: a range in the glob is reversed (${glob}). Correct it.`, { kind: "usage" });
  }
}
