/** Origin of the tokens of a datum, as a training request claims it: runs of sampled sequences and of their prompts. */
import { type FieldCount, fields } from "../../../leaves/protobuf.ts";

/** Consecutive positions of a datum that are those from `offset` on of a sequence's sampled tokens, or of its prompt. */
export interface DatumSpan {
  readonly kind: "prompt" | "sampled";
  readonly sequenceId: string;
  readonly offset: number;
  readonly length: number;
}

/** The spans of a datum, each list in the order of the positions. */
export interface Provenance {
  readonly modelInput: readonly DatumSpan[];
  readonly targets: readonly DatumSpan[];
}

/** A ProvenanceSpan of the protocol. Lengths that are no counts become numbers that no sequence has. */
export function decodeSpan(bytes: Uint8Array, count: FieldCount): DatumSpan {
  const span = { kind: "prompt" as DatumSpan["kind"], sequenceId: "", offset: 0, length: 0 };
  for (const arm of fields(bytes, count)) {
    if (arm.number === 1) span.kind = "prompt";
    else if (arm.number === 2) span.kind = "sampled";
    else continue;
    for (const field of fields(arm.bytes, count))
      if (field.number === 1) span.sequenceId = new TextDecoder().decode(field.bytes);
      else if (field.number === 2) span.offset = Number(field.varint);
      else if (field.number === 3) span.length = Number(field.varint);
  }
  return span;
}
