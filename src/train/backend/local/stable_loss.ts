/** The loss `stable_reinforce` on this machine: score centering, with what the sampler knew when it drew the tokens. */
import type {
  LossSpec,
  Metrics,
  SampledSequence,
  SampleRequest,
  TrainBatch,
} from "../../../engine/contract/backend.ts";
import { type LossRows, RECORDED_TOP, type SampledTargets } from "../../../engine/contract/engine.ts";
import type { LanguageModel } from "../../../engine/model/language_model.ts";
import { type RecordedTop, SampledRecords, type SampledSpan } from "../stable/sampled_records.ts";
import { type StableRows, stableRows } from "../stable/stable_rows.ts";
import { CenteredLoss, SCORE_CENTERING } from "./centered_loss.ts";
import { computeHostLoss } from "./host_loss.ts";
import { checkBatch } from "./policy_loss.ts";

/** Limit of as much as a server records by default: three million sampled tokens. */
const MOST_BYTES = 512 * 2 ** 20;

/** Has the sampler report its most likely tokens, and keeps them for the loss. */
export class StableRecording {
  readonly records = new SampledRecords({ mostBytes: MOST_BYTES });
  private next = 0;

  /** The request as the sampler gets it. */
  asked(request: SampleRequest): SampleRequest {
    if (!isRecordable(request)) return request;
    const { top_logprobs: wanted = 0, onTokens } = request;
    return {
      ...request,
      top_logprobs: Math.max(wanted, RECORDED_TOP),
      onTokens: onTokens && ((tokens, logprobs, top) => onTokens(tokens, logprobs, cut(top, wanted))),
    };
  }

  /** Keeps what was drawn for a request. @returns it as the request asked for it */
  keep(request: SampleRequest, { top_logprobs: top, ...drawn }: SampledSequence): SampledSequence {
    const { prompt_ids: prompt, params, top_logprobs: wanted = 0 } = request;
    if (isRecordable(request) && top) {
      const { tokens, logprobs } = drawn;
      const of = { sequenceId: String(this.next++), temperature: params.temperature, top: recordedTop(top) };
      this.records.add({ ...of, prompt, tokens, logprobs });
    }
    const shown = cut(top, wanted);
    return { ...drawn, ...(shown && { top_logprobs: shown }) };
  }
}

/** Greedy samples have no gradient, and those of a nucleus or a grammar are drawn from other tokens. */
function isRecordable({ params, allowed, mayTrain = true }: SampleRequest): boolean {
  return mayTrain && params.temperature > 0 && params.top_p === 1 && params.top_k <= 0 && !allowed;
}

type Top = NonNullable<SampledSequence["top_logprobs"]>;

function cut(top: Top | undefined, wanted: number): Top | undefined {
  return wanted > 0 ? top?.map((row) => row.slice(0, wanted)) : undefined;
}

function recordedTop(top: Top): RecordedTop {
  const rows = top.map((row) => row.slice(0, RECORDED_TOP));
  const targets = rows.flat();
  return {
    k: rows[0]?.length ?? 0,
    tokens: Uint32Array.from(targets, ({ token }) => token),
    logprobs: Float32Array.from(targets, ({ logprob }) => logprob),
  };
}

/**
 * Adds the gradient of the loss over a batch to a model's gradient, pass by pass.
 * @returns the loss
 * @throws {ConfigError} for a trained token that was not recorded, and as {@link checkBatch}
 * @throws {UnsupportedError} for a KL term to the reference
 */
export async function accumulateStable(
  model: LanguageModel,
  batch: TrainBatch,
  { spec, records }: { spec: LossSpec; records: SampledRecords },
): Promise<Metrics> {
  checkBatch(batch);
  const stable = stableRows(batch, { spec, records, part: "local" });
  const { klCoeff } = stable;
  const request = { name: SCORE_CENTERING, config: { ...(klCoeff !== 0 && { kl_coeff: klCoeff }) } };
  const rows = lossRows(stable, records);
  const loss = new CenteredLoss(request, rows, { scoresAll: false });
  await model.accumulate(
    { ...rows, ...loss.scored },
    {
      temperature: spec.temperature,
      usesEntropies: false,
      loss: (outputs) => computeHostLoss(model.device, loss, outputs),
    },
  );
  const { "loss:sum": value = 0 } = loss.metrics;
  return { "actor/loss": value, "actor/pg_loss": value };
}

/** The engine's rows: the target of a token is the one behind it. */
function lossRows({ rows, inputs, spans }: StableRows, records: SampledRecords): LossRows {
  const shifted = Object.entries(inputs).map(([name, values]) => [name, behind(values, rows.offsets)] as const);
  return {
    ...rows,
    targets: behind(rows.tokens, rows.offsets),
    inputs: Object.fromEntries(shifted),
    sampled: sampledTargets(rows.offsets, { spans, records }),
  };
}

/** The value of the token behind each; 0 at the last of a row. */
function behind<V extends Uint32Array | Float32Array>(values: V, offsets: Uint32Array): V {
  const next = values.slice() as V;
  next.copyWithin(0, 1);
  for (const end of offsets.subarray(1)) next[end - 1] = 0;
  return next;
}

function sampledTargets(
  offsets: Uint32Array,
  { spans, records }: { spans: StableRows["spans"]; records: SampledRecords },
): SampledTargets {
  const [at, ends, tokens, logprobs]: number[][] = [[], [0], [], []];
  for (const [row, ofRow] of spans.entries()) {
    let first = 0;
    for (const span of ofRow) {
      if (span.kind === "sampled") take(span, { start: offsets[row]!, first });
      first += span.length;
    }
  }
  return {
    at: Uint32Array.from(at!),
    offsets: Uint32Array.from(ends!),
    tokens: Uint32Array.from(tokens!),
    logprobs: Float32Array.from(logprobs!),
  };

  function take(span: SampledSpan, { start, first }: { start: number; first: number }): void {
    const top = records.topOf(span)!;
    // A row's first token is no target.
    for (let i = first === 0 ? 1 : 0; i < span.length; i++) {
      const range = [(span.offset + i) * top.k, (span.offset + i + 1) * top.k] as const;
      at!.push(start + first + i - 1);
      tokens!.push(...top.tokens.subarray(...range));
      logprobs!.push(...top.logprobs.subarray(...range));
      ends!.push(tokens!.length);
    }
  }
}
