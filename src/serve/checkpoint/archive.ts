/** A checkpoint's weights in the files that others read (PEFT's for an adapter), each alone or in a tar archive. */
import { open, readdir } from "node:fs/promises";
import { join } from "node:path";
import { tarHeader, tarPadding, tarTrailer } from "./tar.ts";

/** Files that only this server reads. */
const PRIVATE = /^(checkpoint\.json|base\.json|optimizer\.safetensors)$/;

/** The names of a checkpoint's files that others read, in order. */
export async function publicFiles(dir: string): Promise<string[]> {
  return (await readdir(dir)).filter((name) => !PRIVATE.test(name)).sort();
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

/** The content of one of a checkpoint's {@link publicFiles}. */
export async function* content(dir: string, name: string): AsyncGenerator<Uint8Array> {
  const file = await open(join(dir, name));
  try {
    for await (const chunk of file.createReadStream({ autoClose: false })) yield chunk as Uint8Array;
  } finally {
    await file.close();
  }
}

/** Writes a file of another server's checkpoint as it arrives. */
export async function receive(
  body: ReadableStream<Uint8Array>,
  { dir, name }: { dir: string; name: string },
): Promise<void> {
  const file = await open(join(dir, name), "wx", 0o600);
  try {
    const reader = body.getReader();
    for (let next = await reader.read(); !next.done; next = await reader.read()) await file.writeFile(next.value);
  } finally {
    await file.close();
  }
}
