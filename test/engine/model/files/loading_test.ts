import { afterEach, expect, test } from "vitest";
import { showLoading } from "../../../../src/cli/process/loading.ts";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import { openModelFolder } from "../../../../src/engine/model/files/folder.ts";
import { type Loading, onLoading, startLoading } from "../../../../src/engine/model/files/loading.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

afterEach(() => onLoading(undefined));

test.skipIf(!hasShared)("progress counts every byte of a folder's weights", async () => {
  const folder = await openModelFolder(sharedPath("models/stories260k"));
  const seen: Loading[] = [];
  onLoading((loading) => seen.push(loading));
  const device = new CpuDevice();
  await LanguageModel.load(device, folder);
  device.destroy();
  const { total } = seen[0]!;
  expect(total).toBeGreaterThan(250_000 * 2);
  expect(seen.map(({ done }) => done)).toEqual(seen.map(({ done }) => done).sort((a, b) => a - b));
  expect(seen.at(-1)).toEqual({ name: folder.name, done: total, total });
});

test("a terminal shows one line that is redrawn, and cleared at the end", async () => {
  let text = "";
  const err = (part: string) => {
    text += part;
  };
  const signal = new AbortController().signal;
  const rest = { out: () => {}, env: {}, signal, stdin: async () => "" };
  showLoading({ ...rest, err, isTerminal: true, color: false, columns: 80 });
  const read = startLoading("big", [2 ** 30, 2 ** 30]);
  await new Promise((resolve) => setTimeout(resolve, 10));
  read(2 ** 30);
  expect(text).toBe("");
  const again = startLoading("big", [2 ** 30, 2 ** 30]);
  await new Promise((resolve) => setTimeout(resolve, 150));
  again(2 ** 30);
  expect(text.startsWith("\r\x1b[2Kloading big  1024/2048 MiB  ")).toBe(true);
  expect(text).toMatch(/\/s {2}eta \d/);
  again(2 ** 30);
  expect(text.endsWith("\r\x1b[2K")).toBe(true);
});
