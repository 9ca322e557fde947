/** Model files on disk. The only file of model/ that uses the runtime's file system (Node's, in Deno too). */
import type { FileHandle } from "node:fs/promises";
import { ConfigError, fileError } from "../../../leaves/errors.ts";
import { nodeModule } from "../../../leaves/node_module.ts";
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

/** `model-00001-of-00003.gguf`. */
const SHARD = /^(.*)-\d{5}-of-(\d{5})\.gguf$/;

/**
 * The GGUF file at this path, or the one that the folder holds in place of a model's or an adapter's files, with its shards. Empty where there
 * is none. @throws ConfigError for a folder with several, or a shard that is missing
 */
export async function ggufFiles(path: string): Promise<ByteReader[]> {
  if (path.endsWith(".gguf") && (await diskFile(path))) return shardsOf(path);
  const names = (await isFolder(path)) ? await listFolder(path) : [];
  const models = names.filter((name) => name.endsWith(".gguf") && !/^mmproj/.test(name));
  if (models.length === 0 || names.some((name) => /^(adapter_)?config\.json$/.test(name))) return [];
  const firsts = models.filter((name) => !SHARD.test(name) || name.includes("-00001-of-")).sort();
  if (firsts.length === 1) return shardsOf(join(path, firsts[0]!));
  throw new ConfigError(
    `Cannot open the model folder: it has ${firsts.length} GGUF files (${firsts.slice(0, 4).join(", ")}). Name the file.`,
    { file: path },
  );
}

async function shardsOf(path: string): Promise<ByteReader[]> {
  const [, stem, count] = SHARD.exec(path) ?? [];
  const numbers = Array.from({ length: Number(count ?? 0) }, (_, i) => String(i + 1).padStart(5, "0"));
  const paths = stem === undefined ? [path] : numbers.map((number) => `${stem}-${number}-of-${count}.gguf`);
  const files = await Promise.all(paths.map(diskFile));
  const missing = files.indexOf(undefined);
  if (missing < 0) return files as ByteReader[];
  throw new ConfigError("Cannot open the model: a shard is missing. Put all shards into one folder.", {
    file: paths[missing]!,
  });
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
