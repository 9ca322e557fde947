/**
 * Recorded sequences on their way from a server that sampled them with copied weights to the one that trains. Binary, because a token takes
 * 164 bytes: a request may record 52,428 of them. Integers and floats have their low bytes first, as in the protocol's tensors.
 */
import { RECORDED_TOP } from "../../../engine/contract/engine.ts";
import { RemoteError } from "../../../leaves/errors.ts";
import { SLICE_BYTES, yieldToEventLoop } from "../../../leaves/http/event_loop.ts";
import { alignedCopy, bytesOf, type FieldCount, fields, ProtobufWriter } from "../../../leaves/protobuf.ts";
import { Refusal } from "../protocol/outcome.ts";
import type { NamedSequence } from "./recorded_sequences.ts";

/** Sequences that were sampled after one prompt, with the weights of a checkpoint. */
export interface HandedSequences {
  /** Path of the weights: `tinker://RUN/sampler_weights/NAME`. */
  readonly path: string;
  readonly sequences: readonly NamedSequence[];
}

/** The server's limits that the sequences lie in. */
export interface ModelLimits {
  readonly vocabSize: number;
  readonly contextLength: number;
}

/** Content of one message. One sequence may be longer. */
const PART_BYTES = 4 * 2 ** 20;
/** Fields of a message: 1,024 samples have 6,146. */
const MOST_FIELDS = 2 ** 14;
/** Ids as the server names samples: their session, a number in base 36, and the sample's own. */
const ID = /^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):[0-9a-z]{1,11}:\d{1,4}$/;
/** Rounding of log-probs and of their sum. */
const SLACK = 1e-3;

/** Yields messages of some megabytes. */
export function* handedMessages({ path, sequences }: HandedSequences): Generator<Uint8Array<ArrayBuffer>> {
  let part: NamedSequence[] = [];
  let bytes = 0;
  for (const sequence of sequences) {
    const sequenceBytes = 4 * sequence.tokens.length * (1 + 2 * sequence.k);
    if (part.length > 0 && bytes + sequenceBytes > PART_BYTES) {
      yield encode(path, part);
      [part, bytes] = [[], 0];
    }
    part.push(sequence);
    bytes += sequenceBytes;
  }
  if (part.length > 0) yield encode(path, part);
}

function encode(path: string, sequences: readonly NamedSequence[]): Uint8Array<ArrayBuffer> {
  const message = new ProtobufWriter().text(1, path).bytes(2, bytesOf(sequences[0]!.prompt));
  for (const { id, tokens, k, top } of sequences)
    message.message(
      3,
      new ProtobufWriter()
        .text(1, id)
        .bytes(2, bytesOf(tokens))
        .varint(3, k)
        .bytes(4, bytesOf(top.tokens))
        .bytes(5, bytesOf(top.logprobs)),
    );
  return new Uint8Array(alignedCopy(message.finish()));
}

/** Decodes and checks in slices, so that other requests are answered in between. @throws Refusal 422 */
export async function decodeHanded(bytes: Uint8Array): Promise<HandedSequences> {
  const count = { left: MOST_FIELDS };
  let [path, prompt] = ["", new Uint32Array()];
  const sequences: NamedSequence[] = [];
  let slice = 0;
  try {
    for (const field of fields(bytes, count)) {
      if (field.number === 1) path = new TextDecoder().decode(field.bytes);
      else if (field.number === 2) prompt = numbersOf(field.bytes);
      else if (field.number === 3) sequences.push({ ...sequenceOf(field.bytes, count), prompt });
      slice += field.bytes.length;
      if (slice < SLICE_BYTES) continue;
      slice = 0;
      await yieldToEventLoop();
    }
  } catch (error) {
    throw error instanceof RemoteError ? new Refusal(422, error.message) : error;
  }
  return { path, sequences };
}

function sequenceOf(bytes: Uint8Array, count: FieldCount): Omit<NamedSequence, "prompt"> {
  let [id, k] = ["", 0];
  let [tokens, topTokens, logprobs] = [new Uint32Array(), new Uint32Array(), new Float32Array()];
  for (const field of fields(bytes, count))
    if (field.number === 1) id = new TextDecoder().decode(field.bytes);
    else if (field.number === 2) tokens = numbersOf(field.bytes);
    else if (field.number === 3) k = Number(field.varint);
    else if (field.number === 4) topTokens = numbersOf(field.bytes);
    else if (field.number === 5) logprobs = new Float32Array(numbersOf(field.bytes).buffer);
  return { id, tokens, k, top: { tokens: topTokens, logprobs } };
}

function numbersOf(bytes: Uint8Array): Uint32Array<ArrayBuffer> {
  if (bytes.length % 4 !== 0) throw wrong(`an array must have whole numbers of 4 bytes (${bytes.length} bytes)`);
  return new Uint32Array(alignedCopy(bytes));
}

/**
 * Checks that a sampler of the model can have recorded the sequences.
 * @returns the session that sampled them, by their ids
 * @throws Refusal 422
 */
export async function checkHanded(sequences: readonly NamedSequence[], limits: ModelLimits): Promise<string> {
  const [session] = sequences.map(({ id }) => ID.exec(id)?.[1]);
  let slice = 0;
  for (const sequence of sequences) {
    if (session === undefined || ID.exec(sequence.id)?.[1] !== session)
      throw wrong(`the ids must be those of one session's samples (${JSON.stringify(sequence.id.slice(0, 100))})`);
    checkSequence(sequence, limits);
    slice += sequence.top.tokens.byteLength;
    if (slice < SLICE_BYTES) continue;
    slice = 0;
    await yieldToEventLoop();
  }
  if (session === undefined) throw wrong("there must be at least one (0)");
  return session;
}

function checkSequence({ id, prompt, tokens, k, top }: NamedSequence, { vocabSize, contextLength }: ModelLimits): void {
  const cells = tokens.length * k;
  const rules: readonly (readonly [holds: () => boolean, rule: string])[] = [
    [() => prompt.length > 0, "its prompt must have a token"],
    [() => prompt.length + tokens.length <= contextLength, `it must fit the context of ${contextLength} tokens`],
    [
      () => k >= (tokens.length > 0 ? 1 : 0) && k <= RECORDED_TOP,
      `it must have 1 to ${RECORDED_TOP} tokens at each place`,
    ],
    [() => top.tokens.length === cells && top.logprobs.length === cells, "its arrays must have these at every place"],
    [
      () => [prompt, tokens, top.tokens].every((ids) => ids.every((id) => id < vocabSize)),
      `ids must be below ${vocabSize}`,
    ],
    [() => areDistributions(top.logprobs, k), "the probabilities at a place must add up to 1 at most"],
  ];
  // In order: the later ones rely on those before.
  const broken = rules.find(([holds]) => !holds());
  if (broken) throw wrong(`${broken[1]} (${id})`);
}

/** Whether the log-probs of each place are those of a part of a distribution. */
function areDistributions(logprobs: Float32Array, k: number): boolean {
  for (let at = 0; at < logprobs.length; at += k) {
    let mass = 0;
    for (let i = at; i < at + k; i++) mass += Math.exp(logprobs[i]!);
    // Not true for NaN.
    if (!(mass <= 1 + SLACK)) return false;
  }
  return true;
}

function wrong(why: string): Refusal {
  return new Refusal(422, `Cannot take recorded sequences: ${why}.`);
}
