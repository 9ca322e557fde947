/** The weights of a model as they are read, for people. */

import { onLoading } from "../../engine/model/files/loading.ts";
import { Progress } from "../../train/log/progress.ts";
import type { Io } from "../command.ts";

const MIB = 2 ** 20;

/** Shows how far each model of this process is: at once on a terminal, every ten seconds elsewhere. */
export function showLoading(io: Io): void {
  let shown: { readonly name: string; readonly progress: Progress } | undefined;
  onLoading(({ name, done, total }) => {
    if (shown?.name !== name) shown = { name, progress: new Progress(io, `loading ${name}`, { unit: "MiB" }) };
    shown.progress.update(Math.round(done / MIB), Math.round(total / MIB));
    if (done < total) return;
    shown.progress.finish();
    shown = undefined;
  });
}
