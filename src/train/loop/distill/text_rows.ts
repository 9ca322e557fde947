/** The rows of a teacher with another tokenizer: the student's texts in the teacher's tokens, and the spans that match. */
import { type AlignedSpan, alignSpans, shareOverSpans } from "../../../engine/algorithm/distill/spans.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { offsetsOf } from "../../../engine/packing/offsets.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { type PackedRows, rowCount } from "../../data/pack.ts";
import { type TeacherRows, teacherPrompt } from "./prompt.ts";

/** Tokenizers of the writer and of the reader of the texts. Both have {@link Tokenizer.tokenBytes}. */
export interface Readers {
  readonly student: Tokenizer;
  readonly teacher: Tokenizer;
  /** Name of the teacher, for messages. */
  readonly name: string;
}

/**
 * The replies of the rows after the teacher's own prompt, in its tokens. The end of a reply is the teacher's end token. What
 * follows bytes that are no UTF-8, or that the teacher's tokens cannot write, is left out; there the student's log-probs are
 * returned, so that the difference is 0.
 */
export function textRows(rows: PackedRows, readers: Readers): TeacherRows {
  const parts = Array.from({ length: rowCount(rows) }, (_, row) => textRow(rows, row, readers));
  const offsets = offsetsOf(parts.map(({ tokens }) => tokens.length));
  const tokens_T = Uint32Array.from(parts.flatMap((part) => part.tokens));
  const spans = parts.flatMap((part, row) => part.spans.map((span) => moved(span, { teacher: offsets[row]! })));
  const mask_T = new Uint32Array(tokens_T.length);
  for (const { teacher } of spans) mask_T.fill(1, ...teacher);
  return {
    ...{ tokens: tokens_T, offsets, mask: mask_T },
    atRows: (values) => shareOverSpans(spans, { student: rows.rolloutLogprobs, teacher: values }),
    topAtRows: () => {
      throw new Error("The likeliest tokens of another vocabulary have no place in the student's.");
    },
    aligned: spans.reduce((sum, { student: [first, end] }) => sum + end - first, 0),
  };
}

function moved({ student, teacher }: AlignedSpan, by: { student?: number; teacher: number }): AlignedSpan {
  const move = ([first, end]: AlignedSpan["student"], n: number) => [first + n, end + n] as const;
  return { student: move(student, by.student ?? 0), teacher: move(teacher, by.teacher) };
}

/** The text of the student's prompt, special tokens written out except those that open every text. */
function readPrompt(ids: Uint32Array, { student, teacher }: Readers): number[] {
  const opening = student.encode("");
  const isOpened = opening.every((id, i) => ids[i] === id);
  return teacher.encode(student.decode([...ids.subarray(isOpened ? opening.length : 0)], { skipSpecialTokens: false }));
}

/** A row in the teacher's tokens, and the spans of its trained tokens: the student's at their places in the batch. */
function textRow(rows: PackedRows, row: number, readers: Readers): { tokens: number[]; spans: AlignedSpan[] } {
  const { prompt, start, from, end } = teacherPrompt(rows, row);
  const tokens = [...(prompt ?? readPrompt(rows.tokens.subarray(start, from), readers))];
  const spans: AlignedSpan[] = [];
  for (let first = from; first < end; ) {
    const piece = pieceAt(rows, { first, end }, readers);
    const read = readPiece(rows.tokens.subarray(first, piece), readers);
    const at = { student: first, teacher: tokens.length };
    if (rows.mask[first] === 1) spans.push(...read.spans.map((span) => moved(span, at)));
    tokens.push(...read.tokens);
    if (!read.isWhole) break;
    first = piece;
  }
  return { tokens, spans };
}

/** End of the piece at `first`: an end token alone, or tokens up to one, all trained on or none of them. */
function pieceAt(
  { tokens, mask }: PackedRows,
  { first, end }: { first: number; end: number },
  { student }: Readers,
): number {
  const isEnd = (t: number) => student.eosTokenIds.includes(tokens[t]!);
  if (isEnd(first)) return first + 1;
  let t = first + 1;
  while (t < end && mask[t] === mask[first] && !isEnd(t)) t++;
  return t;
}

interface ReadPiece {
  readonly tokens: number[];
  readonly spans: readonly AlignedSpan[];
  /** Whether the teacher's tokens write all of it. */
  readonly isWhole: boolean;
}

function readPiece(ids: Uint32Array, readers: Readers): ReadPiece {
  const { student, teacher } = readers;
  if (student.eosTokenIds.includes(ids[0]!)) return readEnd(teacher);
  const written = Array.from(ids, (id) => bytesOf(student, id));
  const text = longestText(written);
  const tokens = text === "" ? [] : encoded(text, readers);
  const teacherBytes = tokens.map((id) => bytesOf(teacher, id));
  const bytes = joined(written);
  const extra = leadingSpace(teacherBytes, bytes);
  if (extra) teacherBytes[0] = teacherBytes[0]!.subarray(1);
  const same = commonLength(joined(teacherBytes), bytes);
  const [s, t] = commonEnds(written, teacherBytes, same);
  const spans = alignSpans(lengths(written.slice(0, s)), lengths(teacherBytes.slice(0, t)));
  return { tokens: tokens.slice(0, t), spans, isWhole: s === ids.length };
}

/** The token that ends a message in the teacher's chat template, else its first end token. Nothing where it has none. */
function readEnd(teacher: Tokenizer): ReadPiece {
  const { eosTokenIds, chatTemplate } = teacher;
  const inTemplate = (id: number) => chatTemplate?.includes(teacher.decode([id], { skipSpecialTokens: false }));
  const id = eosTokenIds.find(inTemplate) ?? eosTokenIds[0];
  if (id === undefined) return { tokens: [], spans: [], isWhole: false };
  return { tokens: [id], spans: [{ student: [0, 1], teacher: [0, 1] }], isWhole: true };
}

const encoder = new TextEncoder();
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** A special token counts as its text. */
function bytesOf(tokenizer: Tokenizer, id: number): Uint8Array {
  return tokenizer.tokenBytes?.(id) ?? encoder.encode(tokenizer.decode([id], { skipSpecialTokens: false }));
}

/** The text of the most tokens from the first that end at a character's end. */
function longestText(written: readonly Uint8Array[]): string {
  for (let count = written.length; count > 0; count--) {
    try {
      return utf8.decode(joined(written.slice(0, count)));
    } catch {
      // A character is cut, or there is none.
    }
  }
  return "";
}

function encoded(text: string, { teacher, name }: Readers): number[] {
  try {
    return teacher.encode(text, { addSpecialTokens: false, continues: true });
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(
      `Cannot distil from ${name}: it has no tokens for ${JSON.stringify(text.slice(0, 80))} (${reason}). Take a teacher whose tokens can write what the student samples.`,
      { path: "distillation.teacher_models.teacher_model.model_path" },
    );
  }
}

/** SentencePiece writes a space before the first word of a text. */
function leadingSpace([first]: readonly Uint8Array[], text: Uint8Array): boolean {
  return first?.[0] === SPACE && text[0] !== SPACE;
}

const SPACE = 0x20;

function joined(parts: readonly Uint8Array[]): Uint8Array {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

function lengths(parts: readonly Uint8Array[]): number[] {
  return parts.map(({ length }) => length);
}

function commonLength(a: Uint8Array, b: Uint8Array): number {
  const differs = a.findIndex((byte, i) => byte !== b[i]);
  return differs < 0 ? a.length : differs;
}

/** The most tokens of both that end at the same byte, at most `most`. */
function commonEnds(a: readonly Uint8Array[], b: readonly Uint8Array[], most: number): [number, number] {
  const ends = (parts: readonly Uint8Array[]) => {
    let sum = 0;
    return parts.map(({ length }) => (sum += length));
  };
  const [endsOfA, endsOfB] = [ends(a), ends(b)];
  const isShared = (end: number) => end <= most && endsOfB.includes(end);
  const end = endsOfA.findLast(isShared);
  return end === undefined ? [0, 0] : [endsOfA.lastIndexOf(end) + 1, endsOfB.lastIndexOf(end) + 1];
}
