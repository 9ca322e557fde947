/** Samples and log-probs from weights that the service holds still. */
import type { PackedTokens, SampledSequence, SampleRequest } from "../../contract/backend.ts";
import { RemoteError } from "../../errors.ts";
import { inParallel } from "./datums.ts";
import { WIRES } from "./encodings.ts";
import type { Samples } from "./protobuf_messages.ts";
import { ResultGone, type TinkerSession } from "./session.ts";

const CONCURRENCY = 256;
/** Requests for samples that the service lost are sent again so often. */
const MOST_RESENDS = 5;

export interface SamplingOptions {
  readonly session: TinkerSession;
  readonly contextLength: number;
  /** Requests under way at once, at most; the service may want fewer. Default 256. */
  readonly concurrency?: number | undefined;
}

export class TinkerSampling {
  private readonly options: SamplingOptions;
  private next = 0;

  constructor(options: SamplingOptions) {
    this.options = options;
  }

  /** A request each; results in the order of the requests. @param at.samplerId a sampling session of the service's */
  draw(
    requests: readonly SampleRequest[],
    at: { samplerId: string; version: number; signal?: AbortSignal | undefined },
  ): Promise<SampledSequence[]> {
    const { samplerId, version, signal } = at;
    return inParallel(requests, {
      most: this.atOnce,
      signal,
      map: (request, inner) => this.drawOne(request, { samplerId, version, signal: inner }),
    });
  }

  /** log p of every token of the rows, [T], 0 at first tokens: a request for each row. */
  async score({ tokens, offsets }: PackedTokens, samplerId: string): Promise<Float32Array> {
    const ranges = Array.from({ length: offsets.length - 1 }, (_, i) => [offsets[i], offsets[i + 1]]);
    const all = new Float32Array(tokens.length);
    await inParallel(ranges, {
      most: this.atOnce,
      map: async ([first, end], signal) => {
        if (end! - first! < 2) return;
        const prompt = [...tokens.subarray(first, end)];
        const asked = { prompt, sampling_params: { max_tokens: 1 }, prompt_logprobs: true };
        const { promptLogprobs } = await this.ask(asked, { samplerId, signal });
        if (promptLogprobs?.length !== prompt.length)
          throw new RemoteError("The service sent no log-probs of the prompt.", { retryable: false });
        all.set(promptLogprobs.subarray(1), first! + 1);
      },
    });
    return all;
  }

  private get atOnce(): number {
    const { concurrency = CONCURRENCY, session } = this.options;
    return Math.min(concurrency, session.flags.sample_max_concurrent_requests);
  }

  private async drawOne(
    { prompt_ids, params, seed }: SampleRequest,
    at: { samplerId: string; version: number; signal?: AbortSignal },
  ): Promise<SampledSequence> {
    const room = this.options.contextLength - prompt_ids.length;
    const sampling_params = {
      max_tokens: Math.max(1, Math.min(params.max_tokens, room)),
      temperature: params.temperature,
      top_p: params.top_p,
      top_k: params.top_k > 0 ? params.top_k : -1,
      stop: [...params.stop_token_ids],
      // SkyRL holds seeds in 31 bits.
      seed: this.options.session.wire === "json" ? seed % 2 ** 31 : seed,
    };
    const { sequences } = await this.ask({ prompt: prompt_ids, sampling_params }, at);
    if (sequences.length !== 1)
      throw new RemoteError(`The service sent ${sequences.length} samples where one was asked for.`, {
        retryable: false,
      });
    const { tokens, logprobs, stopReason } = sequences[0]!;
    return { tokens, logprobs, finish_reason: stopReason, weight_version: at.version };
  }

  /** Sent anew under the same number where the service has lost the result. */
  private async ask(
    of: { prompt: readonly number[]; sampling_params: object; prompt_logprobs?: boolean },
    { samplerId, signal }: { samplerId: string; signal?: AbortSignal },
  ): Promise<Samples> {
    const { session } = this.options;
    const body = {
      sampling_session_id: samplerId,
      seq_id: this.next++,
      num_samples: 1,
      prompt: { chunks: [{ type: "encoded_text", tokens: [...of.prompt] }] },
      sampling_params: of.sampling_params,
      prompt_logprobs: of.prompt_logprobs ?? false,
      topk_prompt_logprobs: 0,
      type: "sample",
    };
    for (let resends = 0; ; resends++) {
      try {
        const headers = { "X-Tinker-Sampling-Backpressure": "1" };
        const id = await session.submit("/api/v1/asample", { body, headers, signal, isPaced: true });
        return WIRES[session.wire].samples(await session.result(id, { type: "Sample", signal }));
      } catch (error) {
        if (!(error instanceof ResultGone) || resends >= MOST_RESENDS) throw error;
      }
    }
  }
}
