/** A model's files in memory or in Blobs, for pages: a dropped folder is read, a trained model is handed out. */
import { ConfigError } from "../../../leaves/errors.ts";
import type { FileSource, FolderWriter } from "./file_source.ts";
import type { ByteReader, FolderReader } from "./reader.ts";

/**
 * Reads a model folder from Blobs by their names, for {@link openModelFolder} and `LocalBackend.open`: files that a
 * person dropped on a page. Weights are read range by range.
 * @param name of the folder, for messages.
 */
export function blobFolder(name: string, files: ReadonlyMap<string, Blob>): FolderReader {
  return {
    name,
    async open(file) {
      const blob = files.get(file);
      return blob && blobReader(`${name}/${file}`, blob);
    },
  };
}

function blobReader(name: string, blob: Blob): ByteReader {
  return {
    name,
    size: blob.size,
    async read(offset, length) {
      const bytes = await bytesOf(blob.slice(offset, offset + length), name);
      if (bytes.length === length) return bytes;
      throw new ConfigError(`Cannot read bytes ${offset} to ${offset + length}: the file is shorter.`, { file: name });
    },
  };
}

/** @throws ConfigError where the file has changed or is gone since it was chosen */
async function bytesOf(blob: Blob, name: string): Promise<Uint8Array> {
  try {
    return new Uint8Array(await blob.arrayBuffer());
  } catch (cause) {
    throw new ConfigError(`Cannot read the file: ${(cause as Error).message}. Choose it again.`, { file: name });
  }
}

/** Keeps the files that are written to it, for {@link saveModelFolder} and {@link saveAdapterFolder} in a page. */
export class MemoryFolder implements FolderWriter {
  /** The bytes of each file, by its name. */
  readonly files = new Map<string, Uint8Array<ArrayBuffer>>();

  async write(files: readonly FileSource[]): Promise<void> {
    for (const { name, content } of files) this.files.set(name, await wholeOf(content));
  }
}

async function wholeOf(content: FileSource["content"]): Promise<Uint8Array<ArrayBuffer>> {
  if (typeof content === "string") return new TextEncoder().encode(content);
  if (content instanceof Uint8Array) return content.slice();
  const chunks: Uint8Array[] = [];
  for await (const chunk of content) chunks.push(chunk.slice());
  const whole = new Uint8Array(chunks.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}
