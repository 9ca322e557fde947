/** What an error says about its place and its kind. */
import { describe, expect, test } from "vitest";
import { ConfigError, fileError, type Source, stackOf } from "../src/errors.ts";

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
    ["an unknown code", failed("EWHAT", "a")],
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
