/** `grpu push`: a folder's files as one commit of a repository, which is made where there is none. */
import { readdirSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { pathToFileURL } from "node:url";
import { ConfigError, RemoteError } from "../../leaves/errors.ts";
import { ask, type Hub, isConflict } from "./access.ts";

export interface PushOptions {
  /** `owner/name` */
  readonly repo: string;
  readonly branch: string;
  readonly isPrivate: boolean;
  /** README.md where neither the folder nor the branch has one. */
  readonly card: string;
  /** False uploads large files in the basic way of Git LFS. */
  readonly useXet: boolean;
  readonly notify: (text: string) => void;
}

export interface Pushed {
  readonly sha: string;
  readonly url: string;
  readonly files: readonly string[];
}

/** @throws {ConfigError} for a folder without files. */
export async function push(hub: Hub, dir: string, options: PushOptions): Promise<Pushed> {
  const { repo, branch, notify } = options;
  const files = filesIn(dir);
  if (files.length === 0) throw new ConfigError("Cannot push: the folder has no files.", { file: dir, kind: "data" });
  await makeRepo(hub, options);
  const operations: { operation: "addOrUpdate"; path: string; content: URL | Blob }[] = files.map((path) => ({
    operation: "addOrUpdate",
    path,
    content: pathToFileURL(join(dir, path)),
  }));
  if (!files.includes(CARD) && !(await hasCard(hub, { repo, branch })))
    operations.push({ operation: "addOrUpdate", path: CARD, content: new Blob([options.card]) });
  const bytes = files.reduce((sum, path) => sum + statSync(join(dir, path)).size, 0);
  notify(`pushing ${operations.length} files, ${bytes} bytes, to ${hub.hubUrl}/${repo}\n`);
  const title = "Upload with grpu";
  const commit = { repo, branch, title, operations, useXet: options.useXet, abortSignal: hub.signal };
  const made = await ask(hub, (hubPackage, common) => hubPackage.commit({ ...common, ...commit }));
  if (made === undefined)
    throw new RemoteError("Cannot push: the hub names no commit. Look at the repository's page.", { retryable: true });
  return { sha: made.commit.oid, url: made.commit.url, files: operations.map(({ path }) => path).sort() };
}

const CARD = "README.md";

/**
 * Paths within a folder, without hidden files, which may hold secrets. Links to files count as files.
 * @throws {ConfigError} for a link to nothing
 */
function filesIn(dir: string): string[] {
  return readdirSync(dir, { recursive: true, withFileTypes: true })
    .map((entry) => relative(dir, join(entry.parentPath ?? entry.path, entry.name)).replaceAll("\\", "/"))
    .filter((path) => !path.split("/").some((name) => name.startsWith(".") && name !== ".gitattributes"))
    .filter((path) => isFile(join(dir, path)))
    .sort();
}

function isFile(file: string): boolean {
  const found = statSync(file, { throwIfNoEntry: false });
  if (found) return found.isFile();
  throw new ConfigError("Cannot push: the link points to no file. Restore it, or remove the link.", {
    file,
    kind: "data",
  });
}

/** A repository and a branch that exist stay what they are. */
async function makeRepo(hub: Hub, { repo, branch, isPrivate, notify }: PushOptions): Promise<void> {
  const visibility = isPrivate ? ({ visibility: "private" } as const) : {};
  const isNew =
    !(await isThere(hub, repo)) &&
    (await unlessThere(() =>
      ask(hub, (hubPackage, common) => hubPackage.createRepo({ ...common, repo, ...visibility })),
    ));
  if (isNew) notify(`made the repository ${repo}\n`);
  else if (isPrivate) notify(`${repo} exists: --private changes nothing\n`);
  if (branch !== "main")
    await unlessThere(() => ask(hub, (hubPackage, common) => hubPackage.createBranch({ ...common, repo, branch })));
}

/** Asked first, because a token that may write to one repository may make no other. */
async function isThere(hub: Hub, name: string): Promise<boolean> {
  try {
    await ask(hub, (hubPackage, common) =>
      hubPackage.modelInfo({ ...common, name, revision: "main", additionalFields: ["sha"] }),
    );
    return true;
  } catch (error) {
    if (error instanceof RemoteError && error.status === 404) return false;
    throw error;
  }
}

/** Whether it was made; false where the hub says that it exists. */
async function unlessThere(make: () => Promise<unknown>): Promise<boolean> {
  try {
    await make();
    return true;
  } catch (error) {
    if (isConflict(error)) return false;
    throw error;
  }
}

function hasCard(hub: Hub, { repo, branch }: { repo: string; branch: string }): Promise<boolean> {
  const place = { repo, revision: encodeURIComponent(branch), recursive: false };
  return ask(hub, async (hubPackage, common) => {
    for await (const { path } of hubPackage.listFiles({ ...common, ...place })) if (path === CARD) return true;
    return false;
  });
}
