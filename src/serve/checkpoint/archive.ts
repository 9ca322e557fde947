/** A checkpoint's weights as a tar archive, in the files that others read (PEFT's for an adapter). */
import { open, readdir } from "node:fs/promises";
import { join } from "node:path";
import { tarHeader, tarPadding, tarTrailer } from "./tar.ts";

/** Files that only this server reads. */
const PRIVATE = /^(checkpoint\.json|base\.json|optimizer\.safetensors)$/;

export async function* archive(dir: string): AsyncGenerator<Uint8Array> {
  for (const name of (await readdir(dir)).sort()) {
    if (PRIVATE.test(name)) continue;
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
