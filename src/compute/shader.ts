/** Loads WGSL modules from `shaders/`: files in a checkout and on Node, URLs under the package's own in a page. */
import { ConfigError } from "../errors.ts";

const INCLUDE = /^\/\/#include "(.+)\.wgsl"$/gm;
/** Stands above the text of each included file. */
const FILE_MARK = "//#file ";

const files = new Map<string, Promise<string>>();

/** The module of a kernel: `shaders/<name>.wgsl` with its includes. The same path holds from `src/compute` and `dist/compute`. */
export function loadShader(name: string): Promise<string> {
  return linkShader(name, readShader);
}

/**
 * The text of a module, then that of every file it includes (`//#include "attention/parts/block.wgsl"`, also within
 * those), each once. Includes come last so that the module's own lines keep their numbers; WGSL allows any order.
 */
export async function linkShader(name: string, read: (name: string) => Promise<string>): Promise<string> {
  const texts = new Map<string, string>();
  const add = async (file: string): Promise<void> => {
    if (texts.has(file)) return;
    const text = await read(file);
    texts.set(file, texts.size === 0 ? text : `${FILE_MARK}${file}\n${text}`);
    for (const [, included] of text.matchAll(INCLUDE)) await add(included!);
  };
  await add(name);
  return [...texts.values()].join("\n");
}

/** The file and the line in it of a line of a linked module, both lines from 1; no file for the module's own. */
export function sourceLine(
  code: string,
  line: number,
): { readonly file: string | undefined; readonly line: number } {
  const before = code.split("\n").slice(0, line - 1);
  const mark = before.findLastIndex((text) => text.startsWith(FILE_MARK));
  if (mark < 0) return { file: undefined, line };
  return { file: before[mark]!.slice(FILE_MARK.length), line: line - mark - 1 };
}

function readShader(name: string): Promise<string> {
  let text = files.get(name);
  if (!text) {
    text = readText(new URL(`../../shaders/${name}.wgsl`, import.meta.url));
    files.set(name, text);
    text.catch(() => files.delete(name));
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
  if (!reply.ok)
    throw new ConfigError(
      `Cannot fetch the kernel ${url.href}: HTTP ${reply.status}. Serve shaders/ with the package.`,
    );
  return reply.text();
}
