/** Seals a checkpoint's files with a list of sizes and checksums, and checks them against it. */
import { createReadStream } from "node:fs";
import { open, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";

/** Has every other file of the folder, by name: size in bytes, CRC-32. */
const LIST_FILE = "files.json";

type List = Readonly<Record<string, readonly [bytes: number, crc: number]>>;

/** Writes the list and flushes every file and folder to the disk. */
export async function sealFolder(dir: string): Promise<void> {
  const entries: [string, [number, number]][] = [];
  for (const name of await filesIn(dir)) entries.push([name, await measure(join(dir, name))]);
  await writeFile(join(dir, LIST_FILE), `${JSON.stringify(Object.fromEntries(entries), null, 1)}\n`);
  await syncFolder(dir);
}

/**
 * Describes the damage of a sealed folder; undefined when it is intact or was never sealed.
 * @param options.only checks only matching files that exist.
 */
export async function damageOf(dir: string, options: { only?: RegExp } = {}): Promise<string | undefined> {
  const text = await readFile(join(dir, LIST_FILE), "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  let list: List;
  try {
    list = JSON.parse(text) as List;
  } catch {
    return `${LIST_FILE} is not JSON`;
  }
  for (const [name, [bytes, crc]] of Object.entries(list)) {
    const size = await stat(join(dir, name)).then(
      (file) => file.size,
      () => undefined,
    );
    if (options.only && (size === undefined || !options.only.test(name))) continue;
    if (size === undefined) return `${name} is missing`;
    if (size !== bytes) return `${name} has ${size} bytes of ${bytes}`;
    const [, found] = await measure(join(dir, name));
    if (found !== crc) return `${name} is not what was written (its checksum differs)`;
  }
  return undefined;
}

async function filesIn(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { recursive: true });
  const files: string[] = [];
  for (const name of entries) if ((await stat(join(dir, name))).isFile()) files.push(name);
  return files.sort();
}

async function measure(path: string): Promise<[bytes: number, crc: number]> {
  let [bytes, crc] = [0, 0];
  for await (const part of createReadStream(path, { highWaterMark: 1 << 20 })) {
    bytes += (part as Uint8Array).length;
    crc = crc32(part as Uint8Array, crc);
  }
  return [bytes, crc];
}

/** Flushes every file of a folder, the folders in it, and itself. */
async function syncFolder(dir: string): Promise<void> {
  for (const entry of await readdir(dir, { withFileTypes: true })) {
    const path = join(dir, entry.name);
    if (entry.isDirectory()) await syncFolder(path);
    else await syncFile(path);
  }
  await syncDirectory(dir);
}

export async function syncFile(path: string): Promise<void> {
  const handle = await open(path, "r+");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Makes renames in a directory lasting. Windows cannot open directories and needs no flush. */
export async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, "r").catch(() => undefined);
  await handle?.sync().catch(() => {});
  await handle?.close();
}
