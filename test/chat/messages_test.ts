/** Conversations of data files and requests: what is read, and what a refusal says. */
import { expect, test } from "vitest";
import { readMessages } from "../../src/chat/messages.ts";

const user = (content: unknown) => ({ role: "user", content });
const assistant = (tool_calls: unknown, content: unknown = null) => ({
  role: "assistant",
  content,
  tool_calls,
});
const call = (args: unknown, rest: object = {}) => ({ ...rest, function: { name: "add", arguments: args } });

test.each<[name: string, message: unknown, read: unknown]>([
  ["text", user("hi"), user("hi")],
  ["empty text", user(""), user("")],
  [
    "parts, joined",
    user([
      { type: "text", text: "a" },
      { type: "text", text: "b" },
    ]),
    user("ab"),
  ],
  ["no parts", user([]), user("")],
  ["the role developer", { role: "developer", content: "be brief" }, { role: "system", content: "be brief" }],
  ["an assistant's null content", assistant(undefined), { role: "assistant", content: "" }],
  ["an assistant without content", { role: "assistant" }, { role: "assistant", content: "" }],
  [
    "further fields",
    { role: "tool", content: "3", tool_call_id: "c1" },
    { role: "tool", content: "3", tool_call_id: "c1" },
  ],
  ["tool_calls of null", assistant(null, "x"), { role: "assistant", content: "x" }],
  ["an empty list of calls", assistant([], "x"), { role: "assistant", content: "x" }],
])("readMessages() reads %s", (_, message, read) => {
  expect(readMessages([message])).toStrictEqual([read]);
});

test.each<[name: string, written: unknown, read: unknown]>([
  ["JSON text", '{"a":1,"b":[2]}', { a: 1, b: [2] }],
  ["a value", { a: 1 }, { a: 1 }],
  ["text that is not JSON", "{a", "{a"],
  ["null", null, {}],
  ["nothing", undefined, {}],
])("readMessages() reads a call's arguments given as %s", (_, written, read) => {
  expect(readMessages([assistant([call(written, { id: "c1" })])])).toStrictEqual([
    {
      role: "assistant",
      content: "",
      tool_calls: [{ id: "c1", type: "function", function: { name: "add", arguments: read } }],
    },
  ]);
});

test("readMessages() keeps every message and every call, in order", () => {
  const calls = ["a", "b"].map((name) => ({ type: "function", function: { name, arguments: {} } }));
  const messages = [user("1"), assistant(calls, "2"), { role: "tool", content: "3" }];
  expect(readMessages(messages)).toStrictEqual(messages);
});

const MALFORMED_CALLS = "Cannot read message 0: its tool_calls must be a list of {function: {name, arguments}} (";
const MALFORMED_CONTENT = "Cannot read message 0: its content must be a string, or parts of type text (";
test.each<[value: unknown, says: string]>([
  [undefined, "Cannot read the messages: they must be a list with at least one message (undefined)."],
  ["hi", 'Cannot read the messages: they must be a list with at least one message ("hi").'],
  [[], "Cannot read the messages: they must be a list with at least one message ([])."],
  [[user("a"), "b"], 'Cannot read message 1: it must be {role, content} ("b").'],
  [[null], "Cannot read message 0: it must be {role, content} (null)."],
  [[{ role: 1, content: "a" }], "Cannot read message 0: its role must be a string (1)."],
  [[{ content: "a" }], "Cannot read message 0: its role must be a string (undefined)."],
  [[user(null)], `${MALFORMED_CONTENT}null).`],
  [[user(undefined)], `${MALFORMED_CONTENT}undefined).`],
  [[user(7)], `${MALFORMED_CONTENT}7).`],
  [[assistant(undefined, 7)], `${MALFORMED_CONTENT}7).`],
  [[user([{ type: "text", text: "a" }, null])], `${MALFORMED_CONTENT}[{"type":"text","text":"a"},null]).`],
  [[user([{ type: "image", text: "a" }])], `${MALFORMED_CONTENT}[{"type":"image","text":"a"}]).`],
  [[user([{ type: "text", text: 1 }])], `${MALFORMED_CONTENT}[{"type":"text","text":1}]).`],
  [[assistant("add")], `${MALFORMED_CALLS}"add").`],
  [[assistant([null])], `${MALFORMED_CALLS}[null]).`],
  [[assistant([{}])], `${MALFORMED_CALLS}[{}]).`],
  [[assistant([{ function: { name: 1 } }])], `${MALFORMED_CALLS}[{"function":{"name":1}}]).`],
  [[assistant([call({}), { id: "b" }])], `${MALFORMED_CALLS}[{"function":{"name":"add","arguments":{}}},{"id":"b"}]).`],
])("readMessages(%j) is refused", (value, says) => {
  expect(() => readMessages(value)).toThrow(expect.objectContaining({ name: "ConfigError", message: says }));
});

test("a refusal shows the first 80 characters of the value", () => {
  expect(() => readMessages("x".repeat(100))).toThrow(`("${"x".repeat(79)}).`);
});
