/** What was trained, as a zip of files that transformers, PEFT and `grpu sample` read. */
import { zipSync } from "fflate";
import { MemoryFolder } from "../../../src/engine/model/files/memory_folder.ts";
import { saveAdapterFolder, saveModelFolder } from "../../../src/engine/model/save_model.ts";
import type { Opened } from "./model.ts";

export interface ExportedFiles {
  readonly name: string;
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** The adapter where one is trained, else the whole model. */
export async function exportTrained({ backend, tokenizer, base }: Opened): Promise<ExportedFiles> {
  const model = backend.languageModel;
  const folder = new MemoryFolder();
  if (model.adapter) await saveAdapterFolder(folder, { model, tokenizer, base });
  else await saveModelFolder(folder, { model, tokenizer });
  const name = `grpu-${model.adapter ? "adapter" : "model"}-step-${backend.weightVersion}`;
  const files = Object.fromEntries([...folder.files].map(([file, bytes]) => [`${name}/${file}`, bytes]));
  // Weights do not compress.
  return { name: `${name}.zip`, bytes: zipSync(files, { level: 0 }) as Uint8Array<ArrayBuffer> };
}
