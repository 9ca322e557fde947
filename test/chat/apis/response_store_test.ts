/** Responses that `previous_response_id` continues: how many are kept, and how much memory they take together. */
import { describe, expect, test } from "vitest";
import { ResponseMemory, ResponseStore } from "../../../src/chat/endpoint.ts";

const stored = (letters: number) => ({
  response: { id: "r", instructions: "x".repeat(letters) },
  history: [{ role: "user", content: "hi" }],
});

describe("stored responses", () => {
  test("come back as they were put, as copies", () => {
    const store = new ResponseStore();
    const response = { id: "r", output: [{ type: "message", content: [{ text: "a\ud83d" }] }] };
    const history = [{ role: "user", content: "hi" }];
    store.put("r", { response, history });
    expect(store.get("r")).toEqual({ response, history });
    history.push({ role: "user", content: "later" });
    expect(store.get("r").history).toHaveLength(1);
    store.delete("r");
    expect(() => store.get("r")).toThrow(/^Cannot find the response r: /);
  });

  test("are the last 1,000 of a store", () => {
    const memory = new ResponseMemory();
    const store = new ResponseStore(memory);
    for (let i = 0; i < 1002; i++) store.put(`r${i}`, stored(1));
    expect(() => store.get("r1")).toThrow();
    expect(store.get("r2")).toBeDefined();
    const { bytes } = memory;
    for (let i = 1002; i < 2000; i++) store.put(`r${i}`, stored(1));
    expect(memory.bytes).toBe(bytes);
  });

  test("of one store take a quarter of the memory at most, and leave others theirs", () => {
    const memory = new ResponseMemory(400_000);
    const [one, two] = [new ResponseStore(memory), new ResponseStore(memory)];
    two.put("kept", stored(10_000));
    for (let i = 0; i < 100; i++) one.put(`r${i}`, stored(10_000));
    expect(two.get("kept")).toBeDefined();
    expect(one.get("r99")).toBeDefined();
    expect(() => one.get("r90")).toThrow();
    expect(memory.bytes).toBeGreaterThan(80_000);
    expect(memory.bytes).toBeLessThanOrEqual(100_000 + 21_000);
  });

  test("of many stores take the memory at most: the oldest go", () => {
    const memory = new ResponseMemory(200_000);
    const stores = Array.from({ length: 50 }, (_, i) => {
      const store = new ResponseStore(memory);
      store.put(`r${i}`, stored(10_000));
      expect(memory.bytes).toBeLessThanOrEqual(200_000);
      return store;
    });
    expect(() => stores[0]!.get("r0")).toThrow();
    expect(stores[49]!.get("r49")).toBeDefined();
    for (const store of stores) store.clear();
    expect(memory.bytes).toBe(0);
  });

  test("one that is larger than its store's share is not kept", () => {
    const memory = new ResponseMemory(10_000);
    const store = new ResponseStore(memory);
    store.put("r", stored(10_000));
    expect(memory.bytes).toBe(0);
    expect(() => store.get("r", "previous_response_id")).toThrow(/within limits of memory/);
  });

  test("one that is not kept leaves all others, of its store and of other stores", () => {
    const memory = new ResponseMemory(100_000);
    const [one, two] = [new ResponseStore(memory), new ResponseStore(memory)];
    one.put("a", stored(1000));
    two.put("b", stored(1000));
    const { bytes } = memory;
    // Larger than a share, and larger than the whole memory.
    for (const letters of [20_000, 80_000]) one.put("large", stored(letters));
    expect([one.has("large"), one.has("a"), two.has("b"), memory.bytes]).toEqual([false, true, true, bytes]);
  });
});
