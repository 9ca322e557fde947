/** A checkpoint's weights in the files that others read (PEFT's for an adapter), each alone or in a tar archive. */
import { open, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Watch } from "../watch.ts";
import { tarHeader, tarPadding, tarTrailer } from "./tar.ts";

/** Files that only this server reads. */
const PRIVATE = /^(checkpoint\.json|base\.json|optimizer\.safetensors)$/;

export function isPublicFile(name: string): boolean {
  return !PRIVATE.test(name);
}

/** The names of a checkpoint's files that others read, in order. */
export async function publicFiles(dir: string): Promise<string[]> {
  return (await readdir(dir)).filter(isPublicFile).sort();
}

/** The lengths in bytes of a checkpoint's {@link publicFiles}, by name. */
export async function publicSizes(dir: string): Promise<Record<string, number>> {
  const sizes = (await publicFiles(dir)).map(async (name) => [name, (await stat(join(dir, name))).size] as const);
  return Object.fromEntries(await Promise.all(sizes));
}

export async function* archive(dir: string): AsyncGenerator<Uint8Array> {
  for (const name of await publicFiles(dir)) {
    const file = await open(join(dir, name));
    try {
      const { size } = await file.stat();
      yield tarHeader(name, size);
      for await (const chunk of file.createReadStream({ autoClose: false })) yield chunk as Uint8Array;
      yield tarPadding(size);
    } finally {
      await file.close();
    }
  }
  yield tarTrailer();
}

/**
 * The content of one of a checkpoint's {@link publicFiles}.
 * @param of.check called when the file is open; throws where the folder is no longer the one that was meant
 */
export async function* content(dir: string, of: { name: string; check: () => void }): AsyncGenerator<Uint8Array> {
  const file = await open(join(dir, of.name));
  try {
    of.check();
    for await (const chunk of file.createReadStream({ autoClose: false })) yield chunk as Uint8Array;
  } finally {
    await file.close();
  }
}

export interface Received {
  readonly dir: string;
  readonly name: string;
  /** Its length. */
  readonly bytes: number;
  /** Each part is a sign of life. */
  readonly watch: Watch;
}

/** Writes a file of another server's checkpoint as it arrives. @throws Error for another length, and when the watch aborts. */
export async function receive(body: ReadableStream<Uint8Array>, of: Received): Promise<void> {
  const { signal } = of.watch;
  const file = await open(join(of.dir, of.name), "wx", 0o600);
  const reader = body.getReader();
  const cancel = () => void reader.cancel(signal.reason).catch(() => {});
  signal.addEventListener("abort", cancel);
  // It may have been aborted before the answer began.
  if (signal.aborted) cancel();
  try {
    let received = 0;
    for (let next = await reader.read(); !next.done && received <= of.bytes; next = await reader.read()) {
      of.watch.alive();
      received += next.value.byteLength;
      await file.writeFile(next.value);
    }
    signal.throwIfAborted();
    if (received !== of.bytes)
      throw new Error(`it sends ${received > of.bytes ? "more" : received} bytes in place of ${of.bytes}`);
  } finally {
    cancel();
    await file.close();
  }
}
