/** Model files on disk. The only file of model/ that uses the runtime's file system (Node's, in Deno too). */
import type { FileHandle } from "node:fs/promises";
import { ConfigError, fileError } from "../../errors.ts";
import { nodeModule } from "../../node_module.ts";
import type { FileSource } from "./file_source.ts";
import { type ByteReader, type FolderReader, HUB_NAME } from "./reader.ts";

const { constants } = /* @__PURE__ */ nodeModule("node:fs");
const { mkdir, open, readdir, rename, rm, stat } = /* @__PURE__ */ nodeModule("node:fs/promises");
const { join, resolve } = /* @__PURE__ */ nodeModule("node:path");

/** Bytes per system call, well below its limit of 2 GiB. */
const READ_BYTES = 1 << 28;

/** Reads model files from a folder on disk. @throws ConfigError when there is no such folder. */
export async function diskFolder(dir: string): Promise<FolderReader> {
  if (await isFolder(dir)) return { name: dir, open: (file) => diskFile(join(dir, file)) };
  const hint = HUB_NAME.test(dir)
    ? ` A model is a folder on this machine. If this is a name on the Hugging Face Hub, download it with: hf download ${dir} --local-dir ${dir.split("/")[1]} and give that folder.`
    : "";
  throw new ConfigError(`Cannot open the model folder: it does not exist.${hint}`, { file: dir });
}

/** Whether there is a folder at this path. */
export async function isFolder(path: string): Promise<boolean> {
  const info = await stat(path).catch(() => undefined);
  return info?.isDirectory() ?? false;
}

/** The path from the root, by the folder that this process runs in. */
export function absolutePath(path: string): string {
  return resolve(path);
}

/** A file as ranges of bytes; `undefined` when it does not exist. */
export async function diskFile(path: string): Promise<ByteReader | undefined> {
  const info = await stat(path).catch(() => undefined);
  if (!info?.isFile()) return undefined;
  return { name: path, size: info.size, read: (offset, length) => readRange(path, { offset, length }) };
}

async function readRange(path: string, range: { offset: number; length: number }): Promise<Uint8Array> {
  const bytes = new Uint8Array(range.length);
  const handle = await open(path, constants.O_RDONLY);
  try {
    let done = 0;
    while (done < range.length) {
      const length = Math.min(READ_BYTES, range.length - done);
      const { bytesRead } = await handle.read(bytes, done, length, range.offset + done);
      if (bytesRead === 0) {
        const message = `Cannot read bytes ${range.offset} to ${range.offset + range.length}: the file is shorter.`;
        throw new ConfigError(message, { file: path });
      }
      done += bytesRead;
    }
  } finally {
    await handle.close();
  }
  return bytes;
}

/**
 * Writes files into `dir` (created when absent). Each file is either whole or unchanged: all are written under temporary
 * names and flushed to the disk, and then renamed.
 * @throws ConfigError naming the file when the disk is full or read-only; existing files are intact.
 */
export async function writeFolder(dir: string, files: readonly FileSource[]): Promise<void> {
  await mkdir(dir, { recursive: true }).catch((cause) => fail(dir, cause));
  const temporary = (name: string) => join(dir, `.${name}.partial`);
  try {
    for (const file of files)
      await writeFile(temporary(file.name), file).catch((cause) => fail(join(dir, file.name), cause));
  } catch (cause) {
    for (const { name } of files) await rm(temporary(name), { force: true });
    throw cause;
  }
  for (const { name } of files) await rename(temporary(name), join(dir, name));
  await flushFolder(dir);
}

async function writeFile(path: string, { content, mode }: FileSource): Promise<void> {
  const handle = await open(path, "w", mode);
  try {
    if (typeof content === "string") await writeAll(handle, new TextEncoder().encode(content));
    else if (content instanceof Uint8Array) await writeAll(handle, content);
    else for await (const chunk of content) await writeAll(handle, chunk);
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function writeAll(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await handle.write(bytes, done, Math.min(READ_BYTES, bytes.length - done));
    done += bytesWritten;
  }
}

/** Makes the renames survive a power cut. Not every file system can; the files are whole either way. */
async function flushFolder(dir: string): Promise<void> {
  const handle = await open(dir, constants.O_RDONLY).catch(() => undefined);
  await handle?.sync().catch(() => undefined);
  await handle?.close();
}

function fail(file: string, cause: unknown): never {
  throw fileError(cause, { act: "write the file", file }) ?? cause;
}

/** Removes the files of `dir` whose names `choose` accepts. */
export async function removeFiles(dir: string, choose: (name: string) => boolean): Promise<void> {
  for (const name of await listFolder(dir)) if (choose(name)) await rm(join(dir, name), { force: true });
}

/** Names of the files and folders in `dir`. Empty when it does not exist. */
export function listFolder(dir: string): Promise<string[]> {
  return readdir(dir).catch(() => []);
}
