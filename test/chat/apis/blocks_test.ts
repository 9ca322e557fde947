/** Anthropic's blocks of content. */
import { expect, test } from "vitest";
import { chatMessages } from "../../../src/chat/apis/messages/blocks.ts";

test("a block that no model of text reads is named by its place", () => {
  const content = [{ type: "text", text: "look" }, { type: "image" }];
  const messages = [
    { role: "user" as const, content: "hi" },
    { role: "user" as const, content },
  ];
  expect(() => chatMessages(messages)).toThrow(expect.objectContaining({ param: "messages.1.content.1" }));
});

test("a user's message without blocks is an empty one; one with results alone is none", () => {
  expect(chatMessages([{ role: "user", content: [] }])).toEqual([{ role: "user", content: "" }]);
  const results = [{ type: "tool_result", tool_use_id: "a", content: "3" }];
  expect(chatMessages([{ role: "user", content: results }])).toEqual([
    { role: "tool", tool_call_id: "a", content: "3" },
  ]);
});
