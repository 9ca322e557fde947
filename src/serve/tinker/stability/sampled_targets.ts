/** Turns the provenance of a training request's data into what the samplers of its targets knew. */
import type { LossRows, SampledTargets } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { RequestDatum } from "../protocol/forward_backward.ts";
import type { DatumSpan } from "../protocol/provenance.ts";
import type { RecordedSequence } from "./recorded_sequences.ts";

/** Finds a recorded sequence. @throws ConfigError, in the second half of a sentence about a datum */
export type FindSequence = (sequenceId: string) => RecordedSequence;

/** Position of a target in a sequence. */
interface SampledAt {
  readonly target: number;
  readonly sequence: RecordedSequence;
  readonly place: number;
}

/**
 * Checks the provenance of every datum: its runs cover its tokens, lie in recorded sequences, and hold their tokens. The targets in a
 * prompt's run may be anything, because nothing is trained there.
 * @throws ConfigError naming the datum
 */
export function sampledTargets(data: readonly RequestDatum[], rows: LossRows, find: FindSequence): SampledTargets {
  const records = new Map<string, RecordedSequence>();
  const cached = (id: string) => {
    const found = records.get(id) ?? find(id);
    records.set(id, found);
    return found;
  };
  const targets = data.flatMap((datum, i) => targetsOf(datum, { i, rows, find: cached }));
  const offsets = new Uint32Array(targets.length + 1);
  for (const [s, { sequence }] of targets.entries()) offsets[s + 1] = offsets[s]! + sequence.k;
  const top = {
    tokens: new Uint32Array(offsets[targets.length]!),
    logprobs: new Float32Array(offsets[targets.length]!),
  };
  for (const [s, { sequence, place }] of targets.entries()) {
    const range = [place * sequence.k, (place + 1) * sequence.k] as const;
    top.tokens.set(sequence.top.tokens.subarray(...range), offsets[s]);
    top.logprobs.set(sequence.top.logprobs.subarray(...range), offsets[s]);
  }
  return { at: Uint32Array.from(targets, ({ target }) => target), offsets, ...top };
}

interface OfDatum {
  readonly i: number;
  readonly rows: LossRows;
  readonly find: FindSequence;
}

function targetsOf({ provenance }: RequestDatum, { i, rows, find }: OfDatum): SampledAt[] {
  if (!provenance)
    throw wrong(i, "it does not say which tokens were sampled. Attach provenance with Datum.with_provenance");
  const [start, end] = [rows.offsets[i]!, rows.offsets[i + 1]!];
  const of = { i, find, length: end - start };
  checkRuns(provenance.modelInput, { ...of, name: "model_input_spans" }, (run) => {
    const sampled = run.span.kind === "prompt" ? run.sequence.prompt : run.sequence.tokens;
    compare(rows.tokens.subarray(start, end), { run, sampled, i, name: "model_input" });
  });
  const sampled: SampledAt[] = [];
  checkRuns(provenance.targets, { ...of, name: "loss_fn_input_spans" }, (run) => {
    if (run.span.kind === "prompt") return;
    const { span, sequence, first } = run;
    compare(rows.targets.subarray(start, end), { run, sampled: sequence.tokens, i, name: "target_tokens" });
    for (let at = 0; at < span.length; at++)
      sampled.push({ target: start + first + at, sequence, place: span.offset + at });
  });
  return sampled;
}

/** A span with its sequence, and the datum's position that it begins at. */
interface Run {
  readonly span: DatumSpan;
  readonly sequence: RecordedSequence;
  readonly first: number;
}

function checkRuns(
  spans: readonly DatumSpan[],
  { i, find, length, name }: Pick<OfDatum, "i" | "find"> & { length: number; name: string },
  take: (run: Run) => void,
): void {
  const covered = spans.reduce((sum, span) => sum + span.length, 0);
  if (covered !== length) throw wrong(i, `its ${name} must cover its ${length} positions (${covered})`);
  let first = 0;
  for (const [s, span] of spans.entries()) {
    const sequence = found(find, { i, id: span.sequenceId });
    const sampled = span.kind === "prompt" ? sequence.prompt : sequence.tokens;
    if (span.offset < 0 || span.length < 0 || span.offset + span.length > sampled.length)
      throw wrong(
        i,
        `span ${s} of ${name} must lie in the ${sampled.length} ${span.kind} tokens of its sequence (${span.length} from ${span.offset} on)`,
      );
    take({ span, sequence, first });
    first += span.length;
  }
}

function found(find: FindSequence, { i, id }: { i: number; id: string }): RecordedSequence {
  try {
    return find(id);
  } catch (error) {
    throw error instanceof ConfigError ? new ConfigError(`Cannot train on datum ${i}: ${error.message}`) : error;
  }
}

function compare(
  sent: Uint32Array,
  { run, sampled, i, name }: { run: Run; sampled: Uint32Array; i: number; name: string },
): void {
  const { span, first } = run;
  for (let at = 0; at < span.length; at++) {
    const [token, recorded] = [sent[first + at]!, sampled[span.offset + at]!];
    if (token !== recorded)
      throw wrong(
        i,
        `position ${first + at} of ${name} must be token ${recorded}, as the sequence that its span names has it (${token})`,
      );
  }
}

function wrong(i: number, why: string): ConfigError {
  return new ConfigError(`Cannot train on datum ${i}: ${why}.`);
}
