/**
 * The text of a WGSL file under `shaders/`, from disk or over HTTP. `dist/` holds another module under this name, which
 * the build writes: each file is a JavaScript module there, so that bundlers find it.
 */
import { ConfigError } from "../../leaves/errors.ts";
import { nodeModule } from "../../leaves/node_module.ts";

/** @throws {ConfigError} when `shaders/<name>.wgsl` cannot be read */
export async function readShader(name: string): Promise<string> {
  const url = new URL(`../../../shaders/${name}.wgsl`, import.meta.url);
  try {
    if (url.protocol === "file:") return await nodeModule("node:fs/promises").readFile(url, "utf8");
    const reply = await fetch(url);
    if (reply.ok) return await reply.text();
    throw new Error(`HTTP ${reply.status}`);
  } catch (cause) {
    throw new ConfigError(`Cannot read the kernel ${url.href}: ${(cause as Error).message}. Reinstall grpu.`);
  }
}
