import { expect, test, vi } from "vitest";
import { createRegistry } from "../../src/leaves/registry.ts";

const SETTING = { setting: "zoo.animal" };

test("the last registration of a name counts, and names keep their order", () => {
  const animals = createRegistry<number>("animal", SETTING);
  animals.register("zebra", 1);
  animals.register("ant", 2);
  animals.register("zebra", 3);
  expect(animals.names()).toEqual(["zebra", "ant"]);
  expect(animals.find("zebra")).toBe(3);
  expect([animals.get("ant"), animals.get("cat")]).toEqual([2, undefined]);
  expect([animals.has("ant"), animals.has("cat")]).toEqual([true, false]);
});

test("an unknown name is refused with the nearest one, the known ones and the setting", () => {
  const fruits = createRegistry<number>("fruit", { ...SETTING, builtIn: [["apple", 1]] });
  expect(() => fruits.find("aple")).toThrow(
    'Cannot use the fruit "aple": nothing registers that name (nearest: apple). Known: apple. Register your own in a module given by --import (zoo.animal).',
  );
  expect(() => fruits.find("quince", "zoo.lunch")).toThrow(/"quince": nothing registers that name\. .*zoo\.lunch\)/);
  expect(() => createRegistry<number>("stone", SETTING).find("flint")).toThrow(/Known: none\./);
});

test("reserved names are refused, and taken ones where names are unique", () => {
  const trees = createRegistry<number>("tree", { ...SETTING, reserved: ["oak"] });
  expect(() => trees.register("oak", 1)).toThrow(
    "Cannot register the tree oak: the name is taken. Choose another one (zoo.animal).",
  );
  const herbs = createRegistry<number>("herb", { ...SETTING, builtIn: [["mint", 1]], isUnique: true });
  herbs.register("sage", 2);
  expect(() => herbs.register("sage", 3)).toThrow(/herb sage: the name is taken/);
  expect(() => herbs.register("mint", 3)).toThrow(/herb mint: the name is taken/);
  expect([herbs.find("sage"), herbs.find("mint")]).toEqual([2, 1]);
});

test("a second copy of the package finds the same table, and a falsy value is a value", async () => {
  createRegistry<number>("planet", SETTING).register("mars", 0);
  vi.resetModules();
  const { createRegistry: second } = await import("../../src/leaves/registry.ts");
  expect(second).not.toBe(createRegistry);
  expect(second<number>("planet", { ...SETTING, builtIn: [["venus", 2]] }).find("mars")).toBe(0);
  expect(second<number>("planet", SETTING).names()).toEqual(["mars"]);
});
