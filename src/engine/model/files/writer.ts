/** Writes a model's files: into a folder on disk, or with a writer of the caller's, as a page has one. */
import type { FileSource, FolderWriter } from "./file_source.ts";

/** Writes to a path on disk, whole or not at all, or to the writer. @throws ConfigError as `writeFolder` of disk.ts */
export async function writeFiles(to: string | FolderWriter, files: readonly FileSource[]): Promise<void> {
  if (typeof to !== "string") return to.write(files);
  // Imported on demand, so that pages, which bring their own writer, never load node:fs.
  const { writeFolder } = await import("./disk.ts");
  await writeFolder(to, files);
}
