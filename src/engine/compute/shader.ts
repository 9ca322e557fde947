/** Links WGSL modules: the file of a kernel with the files it includes. */
import type { Kernel } from "./kernel.ts";
import { readShader } from "./shader_files.ts";

const INCLUDE = /^\/\/#include "(.+)\.wgsl"$/gm;
/** Stands above the text of each included file. */
const FILE_MARK = "//#file ";

const files = new Map<string, Promise<string>>();

/** The text of a kernel's module: its own source, or its file with the files it includes. */
export async function kernelText({ name, source }: Pick<Kernel, "name" | "source">): Promise<string> {
  return (typeof source === "function" ? await source() : source) ?? loadShader(name);
}

/** The module `shaders/<name>.wgsl` with its includes. */
export function loadShader(name: string): Promise<string> {
  return linkShader(name, readOnce);
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
export function sourceLine(code: string, line: number): { readonly file: string | undefined; readonly line: number } {
  const before = code.split("\n").slice(0, line - 1);
  const mark = before.findLastIndex((text) => text.startsWith(FILE_MARK));
  if (mark < 0) return { file: undefined, line };
  return { file: before[mark]!.slice(FILE_MARK.length), line: line - mark - 1 };
}

function readOnce(name: string): Promise<string> {
  let text = files.get(name);
  if (!text) {
    text = readShader(name);
    files.set(name, text);
    text.catch(() => files.delete(name));
  }
  return text;
}
