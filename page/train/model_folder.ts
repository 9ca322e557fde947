/** The files of a model folder that a person drops or chooses. They are read where they are, and never sent anywhere. */

export interface GivenFolder {
  readonly name: string;
  /** By name within the folder. */
  readonly files: ReadonlyMap<string, Blob>;
}

const MODEL_FILE = /\.(json|safetensors|jinja)$/;

/** @throws {Error} that says what the folder lacks */
export function folderOf(files: readonly File[]): GivenFolder {
  const [first] = files;
  const name = first?.webkitRelativePath.split("/")[0] || "model";
  // A folder's own files; what lies deeper (checkpoints, an original) is another model's.
  const own = files.filter(({ webkitRelativePath }) => webkitRelativePath.split("/").length <= 2);
  const kept = new Map(own.filter((file) => MODEL_FILE.test(file.name)).map((file) => [file.name, file]));
  return checked({ name, files: kept });
}

/** The folder or the files of a drop. @throws {Error} that says what they lack */
export async function droppedFolder(items: DataTransferItemList): Promise<GivenFolder> {
  const entries = Array.from(items, (item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  const folder = entries.find((entry) => entry.isDirectory) as FileSystemDirectoryEntry | undefined;
  const inside = folder ? await entriesOf(folder) : entries;
  const wanted = inside.filter((entry) => entry.isFile && MODEL_FILE.test(entry.name)) as FileSystemFileEntry[];
  const files = await Promise.all(wanted.map(fileOf));
  return checked({ name: folder?.name ?? "model", files: new Map(files.map((file) => [file.name, file])) });
}

function checked(folder: GivenFolder): GivenFolder {
  const has = (name: RegExp) => [...folder.files.keys()].some((file) => name.test(file));
  const lacks = [
    has(/^config\.json$/) ? "" : "config.json",
    has(/\.safetensors$/) ? "" : "a .safetensors file",
    has(/^tokenizer\.json$/) ? "" : "tokenizer.json",
  ].filter(Boolean);
  if (lacks.length === 0) return folder;
  throw new Error(
    `Cannot use the folder ${folder.name}: it has no ${lacks.join(" and no ")}. Give a folder in Hugging Face's layout.`,
  );
}

const fileOf = (entry: FileSystemFileEntry) => new Promise<File>((resolve, reject) => entry.file(resolve, reject));

/** A reader returns some entries at a time, and none at the end. */
async function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return all;
    all.push(...some);
  }
}
