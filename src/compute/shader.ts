/** Reads WGSL modules. They lie beside the code (`shaders/`), as files or under the URL the package was loaded from. */
import { ConfigError } from "../errors.ts";

const cache = new Map<string, Promise<string>>();

/** Text of `shaders/<name>.wgsl`. The same path holds from `src/compute` and from `dist/compute`. */
export function loadShader(name: string): Promise<string> {
  let text = cache.get(name);
  if (!text) {
    text = readText(new URL(`../../shaders/${name}.wgsl`, import.meta.url));
    cache.set(name, text);
    text.catch(() => cache.delete(name));
  }
  return text;
}

async function readText(url: URL): Promise<string> {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    try {
      return await readFile(url, "utf8");
    } catch (cause) {
      throw new ConfigError(
        `Cannot read the kernel ${url.pathname}: ${(cause as Error).message}. Reinstall grpu.`,
      );
    }
  }
  const reply = await fetch(url);
  if (!reply.ok) throw new ConfigError(`Cannot fetch the kernel ${url.href}: HTTP ${reply.status}.`);
  return reply.text();
}
