/** Reads a model's files: bytes on demand, from a disk, an HTTP server or a set of Blobs. */
import { ConfigError } from "../../../leaves/errors.ts";
import { decodeUtf8 } from "../../../leaves/utf8.ts";

/** An owner and a name on the Hugging Face Hub: `Qwen/Qwen3-0.6B`. */
export const HUB_NAME = /^[\w-][\w.-]*\/[\w-][\w.-]*$/;

/** A file as ranges of bytes. */
export interface ByteReader {
  /** Path or address, for messages. */
  readonly name: string;
  /** Bytes. */
  readonly size: number;
  /** Exactly `length` bytes from `offset`. */
  read(offset: number, length: number): Promise<Uint8Array>;
}

/** The files of one model, by name. */
export interface FolderReader {
  /** Path or address, for messages. */
  readonly name: string;
  /** A file by its name within the folder; `undefined` when it does not exist. */
  open(file: string): Promise<ByteReader | undefined>;
}

/** Text of a file in the folder; `undefined` when it does not exist. @throws ConfigError for bytes that are not UTF-8. */
export async function readFolderText(reader: FolderReader, file: string): Promise<string | undefined> {
  const bytes = await reader.open(file);
  return bytes && decodeUtf8(await bytes.read(0, bytes.size), { file: `${reader.name}/${file}` });
}

/** Parsed JSON file of the folder; `undefined` when it does not exist. @throws ConfigError for text that is not JSON, or not UTF-8. */
export async function readFolderJson(reader: FolderReader, file: string): Promise<unknown> {
  const text = await readFolderText(reader, file);
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new ConfigError(`Cannot read the file: it is not JSON (${(cause as Error).message}).`, {
      file: `${reader.name}/${file}`,
    });
  }
}
