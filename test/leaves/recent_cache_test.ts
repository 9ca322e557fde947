import { expect, test } from "vitest";
import { RecentCache } from "../../src/leaves/recent_cache.ts";

test("keeps values that are used again, drops others, and holds at most twice its size", () => {
  const cache = new RecentCache<string, string>(3);
  const made: string[] = [];
  const get = (key: string) =>
    cache.get(key, () => {
      made.push(key);
      return key.toUpperCase();
    });
  for (let i = 0; i < 20; i++) {
    expect(get("kept")).toBe("KEPT");
    expect(get(`once ${i}`)).toBe(`ONCE ${i}`);
    expect(cache.count).toBeLessThanOrEqual(6);
  }
  expect(made.filter((key) => key === "kept")).toHaveLength(1);
  get("once 0");
  expect(made.filter((key) => key === "once 0")).toHaveLength(2);
  cache.clear();
  get("kept");
  expect(made.filter((key) => key === "kept")).toHaveLength(2);
});

test("null is a value, and what fails is made again", () => {
  const cache = new RecentCache<number, string | null>(1);
  let made = 0;
  const none = () => {
    made++;
    return null;
  };
  cache.get(1, none);
  cache.get(2, () => "two");
  expect(cache.get(1, none)).toBeNull();
  expect(made).toBe(1);
  expect(() =>
    cache.get(3, () => {
      throw new Error("three");
    }),
  ).toThrow("three");
  expect(cache.get(3, () => "three")).toBe("three");
});
