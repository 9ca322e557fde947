/** A teacher at a Tinker service, or at `grpu serve tinker`: the log-probs of a prompt, from a sampling session. */
import { z } from "zod";
import type { PackedTokens } from "../../../engine/contract/backend.ts";
import type { Teacher, TeacherOptions } from "../../../engine/contract/teacher.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { UnsupportedError } from "../../../leaves/errors.ts";
import { TinkerSampling } from "./sampling.ts";
import { TinkerSession, type TinkerSessionOptions } from "./session.ts";
import { Transport, type TransportOptions } from "./transport.ts";

export interface TinkerTeacherOptions extends TransportOptions, TinkerSessionOptions {
  /** The service's name of a base model, or `tinker://RUN/sampler_weights/NAME`. */
  readonly model: string;
  /** The service does not report one. Absent: its tokens are taken to be the student's. */
  readonly tokenizer?: Tokenizer | undefined;
  /** Longest sequence, tokens; the service refuses longer ones. Default: no limit here. */
  readonly contextLength?: number | undefined;
}

const SAMPLER = z.object({ sampling_session_id: z.string() });

/** Scores with weights that a service holds, at temperature 1. */
export class TinkerTeacher implements Teacher {
  readonly name: string;
  readonly tokenizer: Tokenizer | undefined;
  readonly contextLength: number;
  private readonly session: TinkerSession;
  private readonly sampling: TinkerSampling;
  private readonly samplerId: string;

  private constructor(options: TinkerTeacherOptions, of: { session: TinkerSession; samplerId: string }) {
    const { model, baseUrl, tokenizer, contextLength = Number.POSITIVE_INFINITY } = options;
    this.name = `${model} at ${baseUrl}`;
    this.tokenizer = tokenizer;
    this.contextLength = contextLength;
    this.session = of.session;
    this.samplerId = of.samplerId;
    this.sampling = new TinkerSampling({ session: of.session, contextLength });
  }

  /** @throws {RemoteError} for a service that cannot be reached, refuses the key, or has no such model */
  static async open(options: TinkerTeacherOptions): Promise<TinkerTeacher> {
    const session = await TinkerSession.open(new Transport(options), options);
    try {
      const { model } = options;
      const weights = model.startsWith("tinker://") ? { model_path: model } : { base_model: model };
      const body = { session_id: session.id, sampling_session_seq_id: 0, ...weights, type: "create_sampling_session" };
      const opened = await session.ask("/api/v1/create_sampling_session", { body, shape: SAMPLER });
      return new TinkerTeacher(options, { session, samplerId: opened.sampling_session_id });
    } catch (error) {
      session.close();
      throw error;
    }
  }

  /** @throws {UnsupportedError} for another temperature than 1 */
  async logprobs(rows: PackedTokens, { temperature, signal }: TeacherOptions): Promise<Float32Array> {
    refuseTemperature(temperature, this.name);
    return this.sampling.score(rows, this.samplerId, { signal });
  }

  close(): void {
    this.session.close();
  }
}

/** @throws {UnsupportedError} for another temperature than 1, at which services report log-probs */
export function refuseTemperature(temperature: number, name: string): void {
  if (temperature === 1) return;
  throw new UnsupportedError(
    `Cannot distil from ${name} at temperature ${temperature}: the service has log-probs at 1. Set rllm.rollout.train.temperature=1.`,
    { part: "distillation", capability: "temperature" },
  );
}
