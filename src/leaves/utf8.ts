/** Text of files. Bytes that are not UTF-8 are refused: a replacement character would be trained on. */
import { ConfigError, type Source } from "./errors.ts";

const LINE_FEED = 0x0a;

/** A file, and what it is for, for messages. */
export interface TextPlace extends Pick<Source, "file" | "kind"> {
  /** `data file`. */
  readonly what?: string | undefined;
}

/** The text of a file, without a byte order mark. @throws {ConfigError} with the first line that is not UTF-8 */
export function decodeUtf8(bytes: Uint8Array | ArrayBuffer, place: TextPlace = {}): string {
  try {
    return decoder().decode(bytes);
  } catch {
    const lines = new LineDecoder(place);
    lines.push(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes));
    return lines.end();
  }
}

/** The text of a stream. @throws {ConfigError} as {@link decodeUtf8} */
export async function* utf8Chunks(chunks: AsyncIterable<Uint8Array>, place: TextPlace = {}): AsyncGenerator<string> {
  const lines = new LineDecoder(place);
  for await (const chunk of chunks) yield lines.push(chunk);
  yield lines.end();
}

function decoder() {
  return new TextDecoder("utf-8", { fatal: true });
}

/** Decodes line by line, to know in which one an error lies. */
class LineDecoder {
  private readonly decoder: InstanceType<typeof TextDecoder> = decoder();
  private readonly place: TextPlace;
  private line = 1;

  constructor(place: TextPlace) {
    this.place = place;
  }

  push(chunk: Uint8Array): string {
    const texts: string[] = [];
    for (let start = 0; start < chunk.length; ) {
      const end = chunk.indexOf(LINE_FEED, start) + 1;
      texts.push(this.decode(chunk.subarray(start, end || chunk.length)));
      if (end > 0) this.line++;
      start = end || chunk.length;
    }
    return texts.join("");
  }

  end(): string {
    return this.decode();
  }

  private decode(bytes?: Uint8Array): string {
    try {
      return bytes ? this.decoder.decode(bytes, { stream: true }) : this.decoder.decode();
    } catch (cause) {
      const { what = "file", file, kind } = this.place;
      throw new ConfigError(
        `Cannot read the ${what}: it is not UTF-8 (line ${this.line}${shown(bytes)}). Save it as UTF-8.`,
        { file, line: this.line, ...(kind && { kind }) },
        { cause },
      );
    }
  }
}

/** The readable start of the line. */
function shown(bytes: Uint8Array | undefined): string {
  if (!bytes) return "";
  const text = new TextDecoder().decode(bytes.subarray(0, 60)).trimEnd();
  return `: ${text}`;
}
