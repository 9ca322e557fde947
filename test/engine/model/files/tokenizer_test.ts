import { readFileSync } from "node:fs";
import { Tokenizer as HubTokenizer } from "@huggingface/tokenizers";
import { describe, expect, test } from "vitest";
import { Transcript } from "../../../../src/chat/transcript.ts";
import { openTokenizer } from "../../../../src/engine/model/files/folder.ts";
import {
  byteTokenizer,
  characterTokenizer,
  createTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "../../../../src/engine/model/files/tokenizer.ts";
import { CHATML, chatTokenizer } from "../../../fixtures/chat.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

/** A tokenizer's files as Hugging Face's library reads them. */
function asHub(tokenizer: TextTokenizer): HubTokenizer {
  const files = tokenizer.files();
  return new HubTokenizer(JSON.parse(files["tokenizer.json"]!), JSON.parse(files["tokenizer_config.json"]!));
}

/** The tokenizer after a round trip through its files. */
function reload(tokenizer: TextTokenizer): TextTokenizer {
  const files = tokenizer.files();
  return createTokenizer({
    tokenizer: JSON.parse(files["tokenizer.json"]!),
    config: JSON.parse(files["tokenizer_config.json"]!),
    chatTemplate: files["chat_template.jinja"],
  });
}

describe("the stories model's tokenizer", () => {
  interface Row {
    text: string;
    ids: number[];
    ids_no_special: number[];
    decoded: string;
  }
  test.skipIf(!hasShared)("gives the golden ids and texts", async () => {
    const tokenizer = (await openTokenizer(sharedPath("models/stories260k")))!;
    const rows: Row[] = JSON.parse(readFileSync(sharedPath("golden/tokenizer.stories260k.json"), "utf8"));
    expect(rows.length).toBeGreaterThan(70);
    for (const row of rows) {
      expect(tokenizer.encode(row.text), row.text).toEqual(row.ids);
      expect(tokenizer.encode(row.text, { addSpecialTokens: false }), row.text).toEqual(row.ids_no_special);
      expect(tokenizer.decode(row.ids), row.text).toBe(row.decoded);
    }
    expect(tokenizer).toMatchObject({ vocabSize: 512, bosTokenId: 1, eosTokenIds: [2] });
    expect(tokenizer.decode([1, 403], { skipSpecialTokens: false })).toMatch(/^<s>/);
    expect(reload(tokenizer).encode(rows[4]!.text)).toEqual(rows[4]!.ids);
  });

  test.each([
    ["an id of 2^31", { tokenizer: { model: { type: "BPE", vocab: { a: 2 ** 31 }, merges: [] } } }, /2147483648/],
    ["an id that is not a number", { tokenizer: { model: { type: "BPE", vocab: { a: null }, merges: [] } } }, /null/],
    ["a huge added id", { tokenizer: { added_tokens: [{ id: 1e308, content: "x" }] } }, /1e\+308/],
    ["an alphabet that is no list", { tokenizer: {}, config: { grpu: { kind: "byte", alphabet: {} } } }, /list/],
  ])("refuses %s at once", (_, files, why) => {
    expect(() => createTokenizer(files)).toThrow(why);
  });

  test("names the file when tokenizer.json is invalid", () => {
    expect(() => createTokenizer({ tokenizer: { model: { type: "None" } }, folder: "m" })).toThrow(
      /Cannot read the tokenizer: .*m\/tokenizer\.json/,
    );
  });
});

/** A byte-level BPE tokenizer whose tokens are single bytes; bytes 33-126 stand for themselves, a space is Ġ. */
function byteLevel(type = "BPE") {
  const letters = ["Ġ", ...Array.from({ length: 94 }, (_, i) => String.fromCharCode(33 + i))];
  const byteLevelPart = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const vocab = Object.fromEntries(letters.map((letter, i) => [letter, i]));
  const unigram = { type, unk_id: 0, vocab: letters.map((letter) => [letter, -1]) };
  return {
    version: "1.0",
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: byteLevelPart,
    post_processor: null,
    decoder: byteLevelPart,
    model: type === "BPE" ? { type, vocab, merges: [] } : unigram,
  };
}

describe("decode() and spaces before punctuation", () => {
  // Results of `tokenizers` 0.23.3 and `transformers` 5.23.0 for the same files.
  const TEXT = "it is .5 , or not ? he 's here ! do n't";
  const CLEANED = "it is.5, or not? he's here! don't";
  const forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
  test.each([
    ["BPE", {}, TEXT],
    ["BPE", { clean_up_tokenization_spaces: false }, TEXT],
    ["BPE", { clean_up_tokenization_spaces: true }, TEXT],
    ["BPE", { clean_up_tokenization_spaces: true, [forced]: true }, CLEANED],
    ["Unigram", {}, TEXT],
    ["Unigram", { clean_up_tokenization_spaces: true }, CLEANED],
  ])("%s with %j", (type, config, decoded) => {
    const tokenizer = createTokenizer({ tokenizer: byteLevel(type), config });
    expect(tokenizer.decode(tokenizer.encode(TEXT))).toBe(decoded);
  });

  test("ids survive decoding and encoding", () => {
    const tokenizer = createTokenizer({ tokenizer: byteLevel() });
    for (let seed = 1; seed <= 300; seed++) {
      const ids = Array.from({ length: 24 }, (_, i) => (seed * 7919 + i * i * 104729 + seed * i) % 95);
      expect(tokenizer.encode(tokenizer.decode(ids))).toEqual(ids);
    }
  });
});

describe("characterTokenizer()", () => {
  const tokenizer = characterTokenizer("0123456789+-=? \né🙂.*");
  test("numbers characters in order, then <pad> and <eos>", () => {
    expect(tokenizer.encode("12+3=")).toEqual([1, 2, 10, 3, 12]);
    expect(tokenizer).toMatchObject({
      vocabSize: 22,
      padTokenId: 20,
      eosTokenIds: [21],
      bosTokenId: undefined,
    });
    expect(tokenizer.decode([4, 2, 21, 20])).toBe("42");
    expect(tokenizer.decode([4, 21, 2], { skipSpecialTokens: false })).toBe("4<eos>2");
    expect(tokenizer.decode([])).toBe("");
  });
  test("refuses a character outside the alphabet, and an ambiguous or empty alphabet", () => {
    expect(() => tokenizer.encode("1x")).toThrow(/outside the alphabet .* \("x"\)/);
    expect(() => characterTokenizer("aba")).toThrow(/is repeated \("a"\)/);
    expect(() => characterTokenizer("")).toThrow(/alphabet is empty/);
  });
});

describe.each([
  [
    "character",
    characterTokenizer("0123456789+-=? \né🙂.*<eos>".replace("<eos>", "abc<>/")),
    ["12+3=?", "a <eos>1", "é🙂\n\n..*", ""],
  ],
  ["character with bos", characterTokenizer("01 ", { bos: true }), ["01 10", "  1", ""]],
  ["byte", byteTokenizer(), ["Hello, wörld 🙂\n\0\t", "  two  spaces ", "a<eos>b", "\ufeffmark", ""]],
  ["byte with bos", byteTokenizer({ bos: true }), ["日本語 text", ""]],
] as const)("a %s tokenizer", (_name, tokenizer, texts) => {
  test.each(texts)("reads %j as Hugging Face's reader does, from its own files", (text) => {
    const hub = asHub(tokenizer);
    for (const addSpecialTokens of [true, false]) {
      const ids = tokenizer.encode(text, { addSpecialTokens });
      expect(hub.encode(text, { add_special_tokens: addSpecialTokens }).ids).toEqual(ids);
      expect(reload(tokenizer).encode(text, { addSpecialTokens })).toEqual(ids);
    }
    const plain = tokenizer.encode(text, { addSpecialTokens: false });
    expect(tokenizer.decode(plain, { skipSpecialTokens: false })).toBe(text);
    if (plain.length > 0) {
      expect(hub.decode(plain, { skip_special_tokens: true })).toBe(tokenizer.decode(plain));
    }
  });
  test("survives its files whole", () => {
    const { vocabSize, eosTokenIds, bosTokenId, padTokenId } = reload(tokenizer);
    expect({ vocabSize, eosTokenIds, bosTokenId, padTokenId }).toEqual({
      vocabSize: tokenizer.vocabSize,
      eosTokenIds: tokenizer.eosTokenIds,
      bosTokenId: tokenizer.bosTokenId,
      padTokenId: tokenizer.padTokenId,
    });
    expect(tokenizer.tokenId("<eos>")).toBe(tokenizer.eosTokenIds[0]);
  });
});

test("a byte tokenizer's ids are the bytes, and broken UTF-8 decodes to the replacement mark", () => {
  const tokenizer = byteTokenizer();
  expect(tokenizer.encode("Aé")).toEqual([65, 0xc3, 0xa9]);
  expect(tokenizer.decode([0xc3])).toBe("\ufffd");
  expect(tokenizer).toMatchObject({ vocabSize: 258, padTokenId: 256, eosTokenIds: [257] });
});

describe("formatChat()", () => {
  const template =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}" +
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if loud %}!{% endif %}";
  const files = byteTokenizer({ bos: true }).files();
  const make = (config: object, chatTemplate?: string) =>
    createTokenizer({
      tokenizer: JSON.parse(files["tokenizer.json"]!),
      config: { ...JSON.parse(files["tokenizer_config.json"]!), ...config },
      chatTemplate,
    });
  const messages = [
    { role: "system", content: "Be brief." },
    { role: "user", content: "2+2?" },
  ];
  const text = "<bos><system>Be brief.<eos><user>2+2?<eos><assistant>";

  test("renders the template of tokenizer_config.json, a named list, or chat_template.jinja", () => {
    expect(make({ chat_template: template }).formatChat(messages)).toBe(text);
    const named = [
      { name: "tool_use", template: "no" },
      { name: "default", template },
    ];
    expect(make({ chat_template: named }).formatChat(messages)).toBe(text);
    const own = make({ chat_template: "no" }, template);
    expect(own.formatChat(messages)).toBe(text);
    expect(own.formatChat(messages, { addGenerationPrompt: false, variables: { loud: true } })).toMatch(/<eos>!$/);
    expect(reload(own).formatChat(messages)).toBe(text);
    // The special tokens of the text encode to themselves.
    expect(own.encode(text, { addSpecialTokens: false })[0]).toBe(own.bosTokenId);
  });

  test("uses the template named tool_use for conversations with tools, as transformers does", () => {
    const named = [
      { name: "default", template },
      { name: "tool_use", template: "{{ tools | length }} tools" },
    ];
    const tokenizer = make({ chat_template: named });
    expect(tokenizer.formatChat(messages, { tools: [{}, {}] })).toBe("2 tools");
    expect(tokenizer.formatChat(messages)).toBe(text);
    expect(tokenizer.chatTemplate).toBe(template);
  });

  test.each([
    [
      "a template that is a number",
      { chat_template: 3 },
      /must be a text, or a list of \{name, template\}.*chat_template/,
    ],
    ["a named template without a text", { chat_template: [{ name: "default" }] }, /must be a text, or a list/],
    ["a configuration that is a list", [], /must be a JSON object \(\[\]\) \(m\/tokenizer_config\.json\)\./],
    ["a configuration that is null", null, /must be a JSON object \(null\)/],
  ])("refuses %s, naming the file", (_, config, why) => {
    expect(() => createTokenizer({ tokenizer: JSON.parse(files["tokenizer.json"]!), config, folder: "m" })).toThrow(
      why,
    );
  });

  test("a template's fault names its file", () => {
    const tokenizer = JSON.parse(files["tokenizer.json"]!);
    const broken = createTokenizer({ tokenizer, config: { chat_template: "{% if %}" }, folder: "m" });
    expect(() => broken.formatChat(messages)).toThrow(/Cannot read the chat template: .*\(m\/tokenizer_config\.json/);
    const thrower = createTokenizer({ tokenizer, chatTemplate: "{{ raise_exception('no') }}", folder: "m" });
    expect(() => thrower.formatChat(messages)).toThrow(/template: no \(m\/chat_template\.jinja, chat_template\)\./);
  });

  test("a conversation begins with one BOS, although the tokenizer adds one to texts", () => {
    const tokenizer = make({ chat_template: template });
    const { ids } = new Transcript({ tokenizer }).prompt(messages);
    expect(ids.filter((id) => id === tokenizer.bosTokenId)).toHaveLength(1);
    expect(tokenizer.encode("2+2?").filter((id) => id === tokenizer.bosTokenId)).toHaveLength(1);
    // The test can fail: a formatted conversation that is encoded as a text has two.
    expect(tokenizer.encode(text).slice(0, 2)).toEqual([tokenizer.bosTokenId, tokenizer.bosTokenId]);
  });

  test("the markers of a chat encode as one token each, and stay out of decoded text", () => {
    const tokenizer = chatTokenizer(CHATML);
    const { ids, text: rendered } = new Transcript({ tokenizer }).prompt([{ role: "user", content: "12" }]);
    const [start, end] = [tokenizer.tokenId("<|im_start|>"), tokenizer.tokenId("<|im_end|>")];
    expect(rendered).toBe("<|im_start|>user\n12<|im_end|>\n<|im_start|>assistant\n");
    expect(ids.filter((id) => id === start)).toHaveLength(2);
    expect(ids.filter((id) => id === end)).toHaveLength(1);
    expect(tokenizer.decode(ids)).toBe("user\n12\nassistant\n");
  });

  test("reads special tokens that are objects", () => {
    expect(make({ chat_template: template, bos_token: { content: "<bos>" } }).formatChat(messages)).toBe(text);
  });

  test("says so when there is no template, or it refuses the conversation", () => {
    expect(() => make({}).formatChat(messages)).toThrow(/model has no chat template/);
    const strict = "{{ raise_exception('roles must alternate') }}";
    expect(() => make({ chat_template: strict }).formatChat(messages)).toThrow(
      /with the chat template: .*roles must alternate/,
    );
    expect(() => make({ chat_template: "{% if %}" }).formatChat(messages)).toThrow(/Cannot read the chat template/);
  });

  test("another template goes with the tokenizer, and into its files", () => {
    const plain = withChatTemplate(characterTokenizer("abc"), PLAIN_CHAT_TEMPLATE);
    expect(plain.formatChat([{ role: "user", content: "ab" }])).toBe("ab<eos>");
    expect(plain.encode(plain.formatChat([{ role: "user", content: "ab" }]))).toEqual([0, 1, 4]);
    expect(reload(plain).formatChat([{ role: "user", content: "c" }])).toBe("c<eos>");
  });
});
