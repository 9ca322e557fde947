/** Texts that follow one another: one end token, one first token, and no mark of a first word within a text. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { encodeJoined, encodeText } from "../../src/chat/seams.ts";
import { Transcript } from "../../src/chat/transcript.ts";
import { createTokenizer, type TextTokenizer, withChatTemplate } from "../../src/engine/model/files/tokenizer.ts";
import { encodeExample } from "../../src/train/loop/sft/encode.ts";

const small = JSON.parse(readFileSync(new URL("../fixtures/tokenizers/small.json", import.meta.url), "utf8"));

const TEMPLATE =
  "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/** A small tokenizer with `<s>` before a text; its end token ends a reply. */
function tokenizerOf(name: string): TextTokenizer {
  const json = small.cases[name].tokenizer;
  const idOf = (content: string) =>
    json.added_tokens.find((token: { content: string }) => token.content === content).id;
  const post_processor = {
    type: "TemplateProcessing",
    single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
    pair: [],
    special_tokens: { "<s>": { id: "<s>", ids: [idOf("<s>")], tokens: ["<s>"] } },
  };
  const config = { bos_token: "<s>", eos_token: "</s>", chat_template: TEMPLATE };
  // Those of Metaspace have bytes as a fallback too.
  const decoder = name.startsWith("metaspace") ? small.cases["llama 2"].tokenizer.decoder : json.decoder;
  return createTokenizer({ tokenizer: { ...json, post_processor, decoder }, config });
}

const NAMES = ["llama 2", "gemma", "llama 3", "metaspace, always, True", "metaspace, first, False", "gpt2, prefixed"];

describe.each(NAMES)("%s", (name) => {
  const tokenizer = tokenizerOf(name);
  const [eos] = tokenizer.eosTokenIds;
  const [bos] = [tokenizer.bosTokenId!];
  const train = (example: Parameters<typeof encodeExample>[0]) => encodeExample(example, { tokenizer, eos });

  test.each([
    ["12+3=", "15"],
    ["hello ", "world"],
    ["hel", "lo hello"],
    ["the cat", " sat\n"],
    ["", "a"],
    ["a", ""],
    ["x\u0085", "\ufeffy"],
  ])("a prompt and its response are the tokens of both: %j %j", (prompt, response) => {
    const { ids, mask } = train({ prompt, response });
    expect(ids).toEqual([...tokenizer.encode(prompt + response), eos]);
    // What is trained on holds the response, and at most the start of a token that crosses the seam.
    const start = mask.indexOf(1);
    expect(mask.slice(start)).not.toContain(0);
    const { start: cut } = encodeJoined(tokenizer, { prompt, response, addSpecialTokens: true });
    expect(cut).toBe(start);
    const before = tokenizer.decode(ids.slice(0, start));
    expect(prompt.startsWith(before) || ` ${prompt}`.startsWith(before)).toBe(true);
    const next = tokenizer.decode(ids.slice(0, start + 1));
    expect(next.length >= prompt.length).toBe(true);
  });

  test("a response or a text that ends with the end token has it once", () => {
    expect(train({ prompt: "a", response: "b</s>" }).ids).toEqual(train({ prompt: "a", response: "b" }).ids);
    expect(train({ text: "a b</s>" }).ids).toEqual(train({ text: "a b" }).ids);
    // That of the prompt does not end the response.
    expect(train({ prompt: "a</s>", response: "" }).ids.slice(-2)).toEqual([eos, eos]);
  });

  test("a text that begins with its first token has it once", () => {
    expect(encodeText(tokenizer, "<s>a")).toEqual([
      bos,
      ...tokenizer.encode("<s>a", { addSpecialTokens: false }).slice(1),
    ]);
    expect(train({ text: "<s>a" }).ids.filter((id) => id === bos)).toHaveLength(1);
    expect(train({ prompt: "<s>a", response: "b" }).ids.filter((id) => id === bos)).toHaveLength(1);
    expect(encodeText(tokenizer, "a")).toEqual(tokenizer.encode("a"));
  });

  test("a later turn has no mark of a first word where it continues a reply", () => {
    const transcript = new Transcript({ tokenizer });
    const user = { role: "user", content: "the cat" };
    const prompt = transcript.prompt([user]);
    const message = { role: "assistant", content: " hello" };
    // A reply that was cut off before its end token: the template's follows.
    const responseIds = tokenizer.encode(" hello", { addSpecialTokens: false, continues: true });
    transcript.record(prompt, { responseIds, message });
    const next = transcript.prompt([user, message, { role: "user", content: "the mat" }]);
    const tail = next.ids.slice(prompt.ids.length + responseIds.length);
    expect(tokenizer.decode(tail, { skipSpecialTokens: false })).toContain("the mat");
    expect(tail[0]).toBe(eos);
    // One that ended: what follows its end token is not the start of a text.
    const other = new Transcript({ tokenizer });
    other.record(prompt, { responseIds: [...responseIds, eos!], message });
    const whole = other.prompt([user, message, { role: "user", content: "the mat" }]);
    expect(whole.ids).toEqual(next.ids);
  });

  test("a later turn is the text after the reply where no special token stands between", () => {
    const plain = withChatTemplate(tokenizer, TEMPLATE.replace("</s>", ""));
    const transcript = new Transcript({ tokenizer: plain });
    const user = { role: "user", content: "the cat" };
    const message = { role: "assistant", content: " hello" };
    const prompt = transcript.prompt([user]);
    const responseIds = plain.encode(" hello", { addSpecialTokens: false, continues: true });
    transcript.record(prompt, { responseIds, message });
    const next = transcript.prompt([user, message, { role: "user", content: "the mat" }]);
    const tail = next.ids.slice(prompt.ids.length + responseIds.length);
    const bytes = tail.flatMap((id) => [...plain.tokenBytes!(id)!]);
    expect(new TextDecoder().decode(Uint8Array.from(bytes))).toBe("\nuser:the mat\nassistant:");
  });

  test("a text that continues another has no mark before it, and is otherwise the same", () => {
    const continued = tokenizer.encode("15", { addSpecialTokens: false, continues: true });
    const bytes = continued.flatMap((id) => [...tokenizer.tokenBytes!(id)!]);
    expect(new TextDecoder().decode(Uint8Array.from(bytes))).toBe("15");
  });
});
