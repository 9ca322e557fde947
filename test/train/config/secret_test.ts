/** What counts as a secret, one case for every pattern. */
import { describe, expect, test } from "vitest";
import { allVerlLeaves } from "../../../src/train/config/fields/verl_tree.ts";
import { isSecret, maskOverride, maskTree } from "../../../src/train/config/secret.ts";
import { readConfig } from "./disk.ts";

const SECRETS = ["token", "secret", "password", "passwd", "apikey", "api_key", "accesskey", "access_key"].concat([
  "privatekey",
  "private_key",
  "credential",
  "credentials",
]);

describe("secrets", () => {
  test.each(SECRETS)("%s, alone, in capitals, and after a word", (name) => {
    for (const key of [name, name.toUpperCase(), `hf_${name}`, `my-${name}`, `a.b.c.x_${name}`]) {
      expect([key, isSecret(key)]).toEqual([key, true]);
      expect(maskOverride(`${key}=hunter2`, key)).toBe(`${key}=********`);
    }
  });

  test.each(SECRETS)("not where %s is a part of a longer word, or a section", (name) => {
    for (const key of [`x${name}`, `${name}x`, `${name}_count`, `${name}.x`])
      expect([key, isSecret(key)]).toEqual([key, false]);
  });

  test.each(["bos", "eos", "pad", "unk", "mask", "stop", "cls", "sep", "end", "start"])(
    "%s_token is of a vocabulary",
    (name) => {
      for (const key of [`${name}_token`, `model.${name.toUpperCase()}_TOKEN`])
        expect([key, isSecret(key)]).toEqual([key, false]);
      expect([isSecret(`x${name}_token`), isSecret(`${name}_token_key.api_key`)]).toEqual([true, true]);
    },
  );

  test("declared by a table", () => expect(isSecret("rllm.sdk.proxy.admin_token")).toBe(true));

  test("verl's trees hold none", () => {
    expect([...allVerlLeaves(readConfig).keys()].filter(isSecret)).toEqual([]);
  });

  test("empty, missing and null values are shown; lists and sections are masked within", () => {
    const tree = { token: "", a: { secret: null, api_key: ["x", "y"] }, password: "???", b: { token: "t" } };
    expect(maskTree(tree)).toEqual({
      token: "",
      a: { secret: null, api_key: "********" },
      password: "???",
      b: { token: "********" },
    });
  });
});
