import { describe, expect, test } from "vitest";
import { checkNames, checkPath } from "../../../src/cli/hub/paths.ts";

const OUTSIDE = [
  "",
  ".",
  "..",
  "../evil",
  "/etc/evil",
  "a/../../evil",
  "a/./b",
  "a//b",
  "a/",
  "a\\evil",
  "\\\\server\\evil",
  "C:evil",
  "c:/evil",
  "a\0b",
  "a\u001b[2Jb",
  ".git/hooks/post-checkout",
  "a/.GIT/config",
  "GIT~1/config",
  "a".repeat(1001),
];

test.each(OUTSIDE)("the path %j is refused", (path) => {
  expect(() => checkPath(path)).toThrow("Cannot pull: the repository names a file outside of its folder");
});

test.each([null, 3, ["a"]])("the path %j, which is no text, is refused", (path) => {
  expect(() => checkPath(path as unknown as string)).toThrow("Cannot pull: the repository names a file outside");
});

test.each(["config.json", "onnx/model.onnx", ".gitattributes", "a..b", "...", "a/.env", "mod\u00e8le", "a b"])(
  "the path %s is allowed",
  (path) => {
    expect(() => checkPath(path)).not.toThrow();
  },
);

describe("names that meet on a disk", () => {
  test.each([
    [["a", "A"]],
    [["x/B.json", "X/b.json"]],
    [["mod\u00e8le", "mode\u0300le"]],
    [["a", "a/b"]],
    [["a/b/c", "A/B"]],
  ])("%j is refused", (paths) => {
    expect(() => checkNames(paths, "linux")).toThrow("can have the same place on a disk");
  });

  test.each(["a:b", "CON", "x/nul.json", "a.", "a ", "a?b"])("%j is refused on Windows alone", (path) => {
    expect(() => checkNames([path], "win32")).toThrow(`Windows cannot have a file of this name (${path})`);
    expect(() => checkNames([path], "linux")).not.toThrow();
  });

  test("files of one folder are allowed", () => {
    expect(() => checkNames(["a", "a.part", "b/a", "b/c/a", "console"], "win32")).not.toThrow();
  });
});
