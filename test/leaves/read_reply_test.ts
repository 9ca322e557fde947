import { describe, expect, test } from "vitest";
import { readErrorText, readReply, readReplyJson, readReplyText } from "../../src/leaves/read_reply.ts";

/** A body without end, in pieces of 1000 bytes. */
function endless(): { reply: Response; sent: () => number } {
  let sent = 0;
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      sent += 1000;
      controller.enqueue(new Uint8Array(1000).fill(0x20));
    },
  });
  return { reply: new Response(body), sent: () => sent };
}

describe("a reply of another server", () => {
  test.each([0, 1, 5, 99_999, 100_000])("of %i bytes is read whole", async (size) => {
    const bytes = Uint8Array.from({ length: size }, (_, i) => i % 251);
    expect(await readReply(new Response(bytes), 100_000)).toEqual(bytes);
  });

  test("beyond the limit is an error, and no more of it is read", async () => {
    const { reply, sent } = endless();
    await expect(readReply(reply, 5000)).rejects.toThrow(
      "Cannot read the reply of the server: it has more than 5000 bytes.",
    );
    expect(sent()).toBeLessThan(10_000);
    await expect(readReplyText(endless().reply, 5000)).rejects.toThrow("5000 bytes");
    await expect(readReplyJson(endless().reply, 5000)).rejects.toThrow("5000 bytes");
  });

  test("that is an error is read as far as it may be shown", async () => {
    const { reply, sent } = endless();
    expect(await readErrorText(reply)).toHaveLength(64 * 2 ** 10);
    expect(sent()).toBeLessThan(2 ** 17);
    expect(await readErrorText(new Response(null))).toBe("");
  });

  test("is JSON", async () => {
    expect(await readReplyJson(Response.json({ a: ["é"] }))).toEqual({ a: ["é"] });
    await expect(readReplyJson(new Response("{"))).rejects.toThrow(SyntaxError);
  });
});
