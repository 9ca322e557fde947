/** One file of a repository, downloaded in as many requests as it takes and compared with the repository's digest. */
import { createHash } from "node:crypto";
import { createReadStream, existsSync, statSync } from "node:fs";
import { mkdir, open, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileError, RemoteError } from "../../leaves/errors.ts";
import type { Hub } from "./access.ts";
import type { ListedFile } from "./listing.ts";

/** Requests in a row that bring nothing before a download stops. */
const MOST_EMPTY = 3;

export interface DownloadOptions {
  readonly repo: string;
  /** Hash of the commit. */
  readonly sha: string;
  /** Folder of whole files, under their paths. */
  readonly files: string;
  /** Folder of parts of files, named by the digest of the whole. */
  readonly parts: string;
  /** Takes the number of bytes that are here. */
  readonly progress: (bytes: number) => void;
}

/**
 * Downloads a file into a folder, where it appears when it is whole and its digest is right. A file that is there
 * and right is kept; one that is there in part is continued.
 * @throws {RemoteError} for a file that stops short or is damaged.
 */
export async function download(hub: Hub, file: ListedFile, options: DownloadOptions): Promise<void> {
  const path = join(options.files, file.path);
  const part = join(options.parts, file.digest);
  if (existsSync(path) && (await damageOf(path, file)) === undefined) return;
  await complete(hub, file, { ...options, part });
  const damage = await damageOf(part, file);
  if (damage !== undefined) {
    await rm(part, { force: true });
    throw new RemoteError(
      `Cannot pull the file: ${damage} (${file.path}). The damaged copy is removed; run the command again.`,
      { retryable: true },
    );
  }
  await mkdir(dirname(path), { recursive: true });
  await rename(part, path);
}

async function complete(hub: Hub, file: ListedFile, options: DownloadOptions & { part: string }): Promise<void> {
  const path = [options.sha, ...file.path.split("/")].map(encodeURIComponent).join("/");
  const have = () => statSync(options.part, { throwIfNoEntry: false })?.size ?? -1;
  let most = have();
  for (let empty = 0; have() < file.size; ) {
    const request = { part: options.part, from: Math.max(have(), 0), size: file.size, progress: options.progress };
    await append(hub, `${hub.hubUrl}/${options.repo}/resolve/${path}`, request);
    empty = have() > most ? 0 : empty + 1;
    most = Math.max(most, have());
    if (have() < file.size && empty === MOST_EMPTY)
      throw new RemoteError(
        `Cannot pull the file: it stops after ${Math.max(most, 0)} of ${file.size} bytes (${file.path}). Run the command again: it continues there.`,
        { retryable: true },
      );
  }
}

interface Request {
  readonly part: string;
  /** Bytes that are here. */
  readonly from: number;
  /** Size of the whole file: no more is written than shows that the server sends too much. */
  readonly size: number;
  readonly progress: (bytes: number) => void;
}

/** Adds what one request brings. A connection that breaks is no error: the next request continues. */
async function append(hub: Hub, url: string, { part, from, size, progress }: Request): Promise<void> {
  const { fetchFile, accessToken } = hub;
  const headers = {
    "accept-encoding": "identity",
    ...(from > 0 && { range: `bytes=${from}-` }),
    ...(accessToken !== undefined && { authorization: `Bearer ${accessToken}` }),
  };
  const reply = await fetchFile(url, { headers });
  // 416: the server's file is no longer than the part, which is then of another file.
  if (!reply.ok) {
    await reply.body?.cancel();
    return rm(part, { force: true });
  }
  // A server without ranges sends the file from its start.
  const isRest = reply.status === 206;
  const file = await open(part, isRest ? "a" : "w");
  try {
    let bytes = isRest ? from : 0;
    for await (const chunk of reply.body ?? []) {
      await file.appendFile(chunk);
      bytes += chunk.length;
      progress(bytes);
      if (bytes > size) break;
    }
  } catch (error) {
    hub.signal.throwIfAborted();
    const ofDisk = fileError(error, { act: "write the download", file: part });
    if (ofDisk) throw ofDisk;
  } finally {
    await file.close();
  }
}

/** Returns the fault of the file at a path; undefined where it is the repository's. */
async function damageOf(path: string, { size, digest, isLfs }: ListedFile): Promise<string | undefined> {
  const bytes = statSync(path).size;
  if (bytes !== size) return `it has ${bytes} bytes, and the repository says ${size}`;
  const name = isLfs ? "sha256" : "sha1";
  const hash = createHash(name);
  // git hashes an object's kind and size with its content.
  if (!isLfs) hash.update(`blob ${size}\0`);
  for await (const chunk of createReadStream(path)) hash.update(chunk);
  const found = hash.digest("hex");
  return found === digest ? undefined : `its ${name} is ${found}, and the repository says ${digest}`;
}
