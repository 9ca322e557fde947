// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** Arguments of resolvers, with the answers of OmegaConf 2.3. */
import { expect, test } from "vitest";
import { interpolator } from "../../../src/train/config/hydra/interpolate.ts";
import type { YamlValue } from "../../../src/train/config/yaml/tree.ts";

const TREE = { a: { b: 2 }, l: [1, "q", null, true], s: { k: [0.5] }, n: [] };
const resolved = (text: string) => interpolator({ ...TREE, x: text }, { KEY: "b", LIST: "[1, a]" }).at("x");

test.each<[text: string, value: YamlValue]>([
  ["${oc.select:nope,[1,2]}", [1, 2]],
  ["${oc.select:nope,[1,'a b',{k: 2}]}", [1, "a b", { k: 2 }]],
  ["${oc.select:nope,{a:1}}", { a: 1 }],
  ["${oc.select:nope,[]}", []],
  ["${oc.select:nope,{}}", {}],
  ["${oc.select:nope,'[1,2]'}", "[1,2]"],
  ["${oc.env:NO,'a,b'}", "a,b"],
  ['${oc.env:NO,"a,b"}', "a,b"],
  ["${oc.env:NO, 'a,b' }", "a,b"],
  ["${oc.env:NO,'a}b'}", "a}b"],
  ["${oc.env:NO,'a{b'}", "a{b"],
  ["${oc.env:NO,'a:b'}", "a:b"],
  ["${oc.env:NO,'it\\'s'}", "it's"],
  ["${oc.env:NO,a b}", "a b"],
  ["${oc.env:NO,}", ""],
  ["${oc.decode:'[1,2]'}", [1, 2]],
  ["${oc.decode:${oc.env:LIST}}", [1, "a"]],
  ["${oc.decode:null}", null],
  ["${oc.decode:'null'}", null],
  ["${oc.decode:a b}", "a b"],
  ["${a.${oc.env:KEY}}", 2],
  ["${oc.env:NO,${a.b}}", 2],
  ["${oc.select:nope,${oc.select:no.more,'x,}'}}", "x,}"],
  ["x${l}y", "x[1, 'q', None, True]y"],
  ["x${s}y${n}", "x{'k': [0.5]}y[]"],
  ["it's ${a.b}, isn't it ${oc.env:NO,'}'}", "it's 2, isn't it }"],
])("%s is %j", (text, value) => {
  expect(resolved(text)).toEqual(value);
});

test.each([
  ["${oc.env:NO,a,b}", "oc.env takes at most 2 arguments (3)"],
  ["${oc.select:a,b,c}", "oc.select takes at most 2 arguments (3)"],
  ["${oc.decode:1,2}", "oc.decode takes at most 1 argument (2)"],
  ["${oc.select:nope,[1}", "the value [1 has no closing ]"],
  ["${oc.env:NO,'a}", "the value 'a has no closing '"],
])("%s is refused", (text, message) => {
  expect(() => resolved(text)).toThrow(`Cannot resolve ${text}: ${message} (x)`);
});
