/** Files to write, and who takes them. */

/** One file to write, by name within the folder. */
export interface FileSource {
  readonly name: string;
  readonly content: string | Uint8Array | AsyncIterable<Uint8Array>;
  /** File permissions. Default 0o666, reduced by the process's umask. */
  readonly mode?: number;
}

/** Takes the files of a folder, in their order. */
export interface FolderWriter {
  write(files: readonly FileSource[]): Promise<void>;
}
