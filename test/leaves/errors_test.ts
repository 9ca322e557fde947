/** What an error says about its place and its kind. */
import { describe, expect, test } from "vitest";
import {
  ConfigError,
  DeviceLostError,
  fileError,
  OutOfMemoryError,
  RemoteError,
  ShaderError,
  type Source,
  stackOf,
  UnsupportedError,
} from "../../src/leaves/errors.ts";

describe("the place of an error in the user's input", () => {
  test.each<[Source, string]>([
    [{}, "Cannot go on: x. Do y."],
    [{ path: "data.val_files" }, "Cannot go on: x. Do y (data.val_files)."],
    [{ file: "run.yaml" }, "Cannot go on: x. Do y (run.yaml)."],
    [{ file: "run.yaml", line: 3 }, "Cannot go on: x. Do y (run.yaml:3)."],
    [{ file: "run.yaml", line: 3, path: "a.b" }, "Cannot go on: x. Do y (run.yaml:3, a.b)."],
    [{ line: 3 }, "Cannot go on: x. Do y."],
  ])("%o stands before the full stop", (source, message) => {
    expect(new ConfigError("Cannot go on: x. Do y.", source).message).toBe(message);
  });

  test.each([
    ["Do you mean a?", "Do you mean a (k)?"],
    ["no full stop", "no full stop (k)"],
    ["lines:\n  a.\n  b", "lines:\n  a.\n  b (k)"],
    ["it holds $& and $1.", "it holds $& and $1 (k)."],
  ])("in %j", (message, placed) => {
    expect(new ConfigError(message, { path: "k" }).message).toBe(placed);
  });

  test.each<[Source, string]>([
    [{}, "usage"],
    [{ path: "a.b" }, "config"],
    [{ file: "run.yaml" }, "config"],
    [{ file: "run.yml", path: "a" }, "config"],
    [{ file: "run.sh" }, "config"],
    [{ file: "call.args" }, "config"],
    [{ file: "yaml" }, "data"],
    [{ file: "tasks.jsonl", line: 1 }, "data"],
    [{ file: "tasks.jsonl", path: "data.train_files" }, "data"],
    [{ file: "run.yaml", kind: "data" }, "data"],
  ])("%o decides the kind %s", (source, kind) => {
    expect(new ConfigError("x", source)).toMatchObject({ ...source, kind });
  });
});

test("other errors carry what they are about", () => {
  const cause = new Error("why");
  expect(new ConfigError("Cannot do it.", {}, { cause })).toMatchObject({ name: "ConfigError", cause });
  expect(new OutOfMemoryError("Cannot fit.", { label: "cache", bytes: 7 }, { cause })).toMatchObject({
    ...{ name: "OutOfMemoryError", label: "cache", bytes: 7, path: "memory_budget_bytes", kind: "config", cause },
  });
  expect(new ShaderError("Cannot compile.", { kernel: "rope", line: 4 })).toMatchObject({
    ...{ name: "ShaderError", message: "Cannot compile.", kernel: "rope", line: 4 },
  });
  expect(new UnsupportedError("Cannot.", { part: "cpu", capability: "f16" })).toMatchObject({
    ...{ name: "UnsupportedError", message: "Cannot.", part: "cpu", capability: "f16" },
  });
  expect(new RemoteError("Cannot reach it.", { status: 503, retryable: true })).toMatchObject({
    ...{ name: "RemoteError", message: "Cannot reach it.", status: 503, retryable: true },
  });
  const lost = new DeviceLostError("a reset");
  expect(lost).toBeInstanceOf(RemoteError);
  expect(lost).toMatchObject({ name: "DeviceLostError", why: "a reset", retryable: true });
  expect(lost.message).toBe("Cannot continue: the GPU device was lost (a reset). Resume from the last checkpoint.");
});

describe("an error of the operating system", () => {
  const failed = (code: string, path?: string) => Object.assign(new Error(code), { code, ...(path && { path }) });

  test.each([
    [
      "with the file that it names",
      failed("ENOENT", "a.jsonl"),
      {},
      "Cannot use the file: there is no such file or folder (ENOENT). Check the path (a.jsonl).",
    ],
    [
      "with the file that is known",
      failed("EACCES", "x"),
      { file: "b", act: "write the report" },
      "Cannot write the report: this user may not (EACCES). Change its permissions, or name another place (b).",
    ],
    [
      "of a full disk, without a file",
      failed("ENOSPC"),
      {},
      "Cannot write a file: the disk is full (ENOSPC). Free some space, or name another place.",
    ],
  ])("%s is told in our words", (_, cause, about, message) => {
    const error = fileError(cause, about)!;
    expect(error).toMatchObject({ message, kind: "data", cause });
  });

  test.each([
    ["ENOSPC", "the disk is full", "Free some space, or name another place"],
    ["EFBIG", "the file would be larger than the system allows", "Raise the limit (ulimit -f), or name another place"],
    ["EDQUOT", "the disk quota is used up", "Free some space, or name another place"],
    ["EROFS", "the disk is read-only", "Name another place"],
    ["EACCES", "this user may not", "Change its permissions, or name another place"],
    ["EPERM", "the system does not permit it", "Change its permissions, or name another place"],
    ["ENOENT", "there is no such file or folder", "Check the path"],
    ["ENOTDIR", "a part of the path is a file, not a folder", "Check the path"],
    ["EISDIR", "it is a folder, not a file", "Name a file"],
    ["EEXIST", "a file of that name is in the way", "Move it, or name another place"],
    ["ENOTEMPTY", "the folder is not empty", "Move it, or name another place"],
    ["ENAMETOOLONG", "the name is too long", "Shorten it"],
    ["ELOOP", "its links lead in a circle", "Check the path"],
    ["EMFILE", "too many files are open", "Raise the limit (ulimit -n)"],
    ["ENFILE", "too many files are open on this machine", "Close some programs"],
    ["EIO", "the disk reports an error", "Check the disk, or name another place"],
    ["EBUSY", "another program uses it", "End that program, or name another place"],
  ])("%s: %s", (code, why, advice) => {
    expect(fileError(failed(code, "f"))?.message).toBe(`Cannot use the file: ${why} (${code}). ${advice} (f).`);
    expect(fileError(failed(code, "f"))?.file).toBe("f");
    const needsNoFile = ["ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO"].includes(code);
    expect(fileError(failed(code)) !== undefined).toBe(needsNoFile);
  });

  test.each([
    ["an unknown code", failed("EWHAT", "a")],
    ["a longer code", failed("EIO2")],
    ["nothing", null],
    ["a code that sockets have too, without a file", failed("EACCES")],
    ["a path that is no text", Object.assign(failed("EACCES"), { path: 7 })],
    ["no error", undefined],
  ])("%s is not the file system's", (_, cause) => {
    expect(fileError(cause)).toBeUndefined();
  });
});

test("a stack names the causes, and errors of ours without their stack", () => {
  const own = new ConfigError("Cannot go on: x.", {}, { cause: "why" });
  expect(stackOf(own)).toBe("Cannot go on: x.\ncaused by why");
  const foreign = new Error("outer", { cause: own });
  expect(stackOf(foreign)).toBe(`${foreign.stack}\ncaused by Cannot go on: x.\ncaused by why`);
  const bare = new Error("bare");
  delete bare.stack;
  expect(stackOf(bare)).toBe("Error: bare");
});
