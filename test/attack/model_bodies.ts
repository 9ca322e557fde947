/** Bodies of model calls that are small to send and large to read, render or encode; for `serve openai` and `serve gateway`. */
import type { Hostile } from "./requests.ts";

type Row = readonly [name: string, path: string, body: () => string, ...statuses: number[]];

const CHAT = "v1/chat/completions";
const TEXT = "v1/completions";
const MIB = 2 ** 20;

const asked = (content: string, more = "") =>
  `{"model":"letters","messages":[{"role":"user","content":${content}}],"max_tokens":1${more}}`;
const a = (count: number) => `"${"a".repeat(count)}"`;
const list = (count: number, each: string) => Array<string>(count).fill(each).join();
const numbered = (count: number, each: (i: number) => string) =>
  Array.from({ length: count }, (_, i) => each(i)).join();
const called = (text: string) =>
  `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":${JSON.stringify(text)}}}]},{"role":"user","content":"a"}],"max_tokens":1}`;
const tool = (more = "") => `{"type":"function","function":{"name":"f","parameters":{"type":"object"}${more}}}`;
const formed = (schema: string) =>
  asked(`"a"`, `,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":${schema}}}`);

export const MODEL_BODIES: readonly Row[] = [
  ["a text of 1 M letters", TEXT, () => `{"prompt":${a(1e6)},"max_tokens":1}`, 400],
  ["a text of 31 M letters", TEXT, () => `{"prompt":${a(31e6)},"max_tokens":1}`, 400],
  ["a text as long as is encoded", TEXT, () => `{"prompt":${a(49_000)},"max_tokens":1}`, 400],
  ["a message of 31 M letters", CHAT, () => asked(a(31e6)), 400],
  ["a message of 31 M spaces", CHAT, () => asked(`"${" ".repeat(31e6)}"`), 400],
  ["a message of 2 M special tokens", CHAT, () => asked(`"${"<|im_start|>".repeat(2e6)}"`), 400],
  ["a message of 7 M emoji", CHAT, () => asked(`"${"\u{1f600}".repeat(7e6)}"`), 400],
  ["31 M letters at Anthropic's API", "v1/messages", () => asked(a(31e6)), 400],
  ["31 M letters to count", "v1/messages/count_tokens", () => asked(a(31e6)).replace(',"max_tokens":1', ""), 400],
  ["an input of 31 M letters", "v1/responses", () => `{"input":${a(31e6)}}`, 400],
  ["2048 prompts of 15,000 letters", TEXT, () => `{"prompt":[${list(2048, a(15_000))}],"max_tokens":1}`, 400],
  ["2048 prompts of 500 letters", TEXT, () => `{"prompt":[${list(2048, a(500))}],"max_tokens":1}`, 200],
  ["2048 prompts of 128 choices", TEXT, () => `{"prompt":[${list(2048, a(1))}],"n":128}`, 400],
  ["4 M token ids", TEXT, () => `{"prompt":[${list(4e6, "1")}]}`, 422],
  ["2 M token ids", TEXT, () => `{"prompt":[${list(2e6, "1")}]}`, 400],
  ["2 M wrong token ids", TEXT, () => `{"prompt":[${list(2e6, "-1")}]}`, 400],
  [
    "numbers in a place of their own",
    CHAT,
    () => asked(`"a"`, `,"chat_template_kwargs":{"prompt":[${list(2e6, "1")}]}`),
    422,
  ],
  ["1 M stops", TEXT, () => `{"prompt":"a","stop":[${list(1e6, '"a"')}]}`, 422],
  ["60,000 stops of a wrong type", TEXT, () => `{"prompt":"a","stop":[${list(60_000, "1")}]}`, 400],
  ["1 M unknown fields", TEXT, () => `{${numbered(1e6, (i) => `"k${i}":0`)}}`, 422],
  ["60,000 unknown fields", TEXT, () => `{"prompt":"a",${numbered(60_000, (i) => `"k${i}":0`)}}`, 400],
  [
    "60,000 keys of metadata",
    TEXT,
    () => `{"prompt":"a","max_tokens":1,"metadata":{${numbered(60_000, (i) => `"k${i}":0`)}}}`,
    200,
  ],
  ["metadata of 31 MB", CHAT, () => asked(`"a"`, `,"metadata":{"a":${a(31e6)}}`), 200],
  ["20,000 messages", CHAT, () => `{"messages":[${list(20_000, '{"role":"user","content":"a"}')}]}`, 400],
  ["300,000 messages", CHAT, () => `{"messages":[${list(300_000, '{"role":"user","content":"a"}')}]}`, 422],
  ["15,000 parts of a message", CHAT, () => asked(`[${list(15_000, '{"type":"text","text":"a"}')}]`), 400],
  ["10,000 tools", CHAT, () => asked(`"a"`, `,"tools":[${list(10_000, tool())}]`), 400],
  ["as many tools as are read", CHAT, () => asked(`"a"`, `,"tools":[${list(512, tool())}]`), 400, 200],
  ["a tool described in 20 MB", CHAT, () => asked(`"a"`, `,"tools":[${tool(`,"description":${a(20e6)}`)}]`), 400],
  ["an enum of 60,000 values", CHAT, () => formed(`{"enum":[${numbered(60_000, String)}]}`), 400],
  ["an enum of 1 M values", CHAT, () => formed(`{"enum":[${numbered(1e6, String)}]}`), 422],
  ["a constant of 20 MB", CHAT, () => formed(`{"const":${a(20e6)}}`), 400],
  ["arguments of 6 M values", CHAT, () => called(`[${list(6e6, "[]")}]`), 400],
  ["arguments 100,000 levels deep", CHAT, () => called("[".repeat(1e5) + "]".repeat(1e5)), 400],
  ["arguments that are one text of 30 MB", CHAT, () => called(`"${"a".repeat(30e6)}"`), 400],
  ["30 MB of white space", CHAT, () => asked(`"a"`, " ".repeat(30e6)), 200],
  ["30 MB of nothing", CHAT, () => " ".repeat(30e6), 400],
  ["a number of 30 M digits", TEXT, () => `{"prompt":"a","seed":${"9".repeat(30 * MIB)}}`, 422],
  ["a key of 30 MB", TEXT, () => `{${a(30e6)}:1}`, 400],
];

const item = (solution: string) => `{"solution":${solution},"extra_info":{"split":"train","grpu_task":0}}`;
let calls = 0;
const judge = (items: string) => `{"id":"call ${calls++}","items":[${items}]}`;
const result = (ids: string) => `{"seq":1,"id":"a","results":[{"call":0,"token_ids":[${ids}]}]}`;

/** For a service of rewards. */
export const REWARD_BODIES: readonly Row[] = [
  ["a reply of 31 M letters", "rewards", () => judge(item(a(31e6))), 200],
  ["4,000 replies", "rewards", () => judge(list(4000, item(`"a"`))), 200],
  ["300,000 replies", "rewards", () => judge(list(300_000, item(`"a"`))), 422],
  ["60,000 replies of a wrong form", "rewards", () => judge(list(60_000, "{}")), 422],
  ["a reply 10,000 levels deep", "rewards", () => judge("[".repeat(10_000)), 422],
  ["4 M token ids of a result", "rollouts", () => result(list(4e6, "1")), 422],
  ["2 M token ids of no rollout", "rollouts", () => result(list(2e6, "1")), 410],
  ["30 MB of white space", "rewards", () => judge(item(`"a"`)) + " ".repeat(30e6), 200],
];

/** A row as bytes for a socket. */
export function toModelRequest([name, path, body, ...statuses]: Row, key: string): Hostile {
  const pieces = () => {
    const bytes = Buffer.from(body());
    const head = [
      `POST /${path} HTTP/1.1`,
      "Host: localhost",
      "Connection: close",
      `Authorization: Bearer ${key}`,
      "Content-Type: application/json",
      `Content-Length: ${bytes.length}`,
    ];
    return [`${head.join("\r\n")}\r\n\r\n`, bytes];
  };
  return { name, pieces, statuses };
}
