/** The run that a service serves, its limits and times. */
import type { Tokenizer } from "../../engine/contract/text.ts";
import type { SocketLimits } from "../../leaves/http/listen.ts";
import type { Episode, Task } from "../../train/data/types.ts";
import type { LoopSettings } from "../../train/loop/settings.ts";
import type { Evaluate, Rollout } from "../../train/task/rollout.ts";

/** How much a service takes on. */
export interface ServiceLimits {
  /** Rollouts that are open at once; one more is answered with 503. A cluster opens all of a step's at once. */
  readonly rollouts: number;
  /** Replies that wait for their judgement or are being judged; a request beyond is answered with 503. */
  readonly judgements: number;
  /** Largest size of one body, bytes. */
  readonly bodyBytes: number;
  /** Largest total of all bodies that are being answered, bytes. */
  readonly allBodyBytes: number;
  /** Answers kept for requests that are sent again, bytes; beyond it the oldest go. */
  readonly answerBytes: number;
}

export const SERVICE_LIMITS: ServiceLimits = {
  rollouts: 16_384,
  judgements: 65_536,
  bodyBytes: 32 * 2 ** 20,
  allBodyBytes: 512 * 2 ** 20,
  answerBytes: 256 * 2 ** 20,
};

/** Times of a service, seconds. */
export interface ServiceTimeouts {
  /** How long a request for a rollout's next calls is held before the answer `wait`. */
  readonly hold: number;
  /** How long a rollout may go without a request before it is given up. Its client is silent while the cluster samples. */
  readonly silence: number;
  /** How often rollouts are looked for whose time of silence is over, and answers whose time is. */
  readonly search: number;
  /** How long an answer is kept for a request that is sent again. */
  readonly answers: number;
}

export const SERVICE_TIMEOUTS: ServiceTimeouts = { hold: 20, silence: 1800, search: 1, answers: 900 };

/** The run that a service serves. */
export interface ServedRun {
  readonly tasks: { readonly train: readonly Task[]; readonly val: readonly Task[] };
  readonly rollout: Rollout;
  readonly evaluate?: Evaluate | undefined;
  /**
   * The rollout is one call of the model on the task's own prompt, so that its reply can be judged by itself. Else
   * `POST /rewards` is refused.
   */
  readonly isSingleTurn: boolean;
  readonly settings: LoopSettings;
  /** Tokenizer of the model that the cluster trains. Absent: only replies to prompts that are text can be judged. */
  readonly tokenizer?: Tokenizer | undefined;
  readonly model: {
    readonly name: string;
    /** Longest sequence, prompt and response together. */
    readonly contextLength: number;
  };
}

/** Position of an episode in the cluster's run. */
export interface EpisodePlace {
  /** 0 for a reply that the cluster sampled by itself: it does not tell the step. */
  readonly step: number;
  readonly isValidation: boolean;
}

/** A failure that a service counted. */
export interface ServiceFailure {
  readonly kind: "judgement" | "rollout";
  /** `<task id>:<rollout index>`, or the place of a task that there is not. */
  readonly where: string;
  readonly message: string;
}

/** Options of a service. */
export interface ServiceOptions extends ServedRun {
  /** The key that every request must send: at least 16 characters. */
  readonly token: string;
  /** Names the run in `GET /health`. Default: a random one. */
  readonly run?: string | undefined;
  /** Default 127.0.0.1. */
  readonly host?: string | undefined;
  /** 0, the default, takes a free one. */
  readonly port?: number | undefined;
  readonly limits?: Partial<ServiceLimits> | undefined;
  readonly timeouts?: Partial<ServiceTimeouts> | undefined;
  readonly socket?: Partial<SocketLimits> | undefined;
  /** Called with each episode that was judged, for logs of samples. */
  readonly onEpisode?: ((episode: Episode, at: EpisodePlace) => void) | undefined;
  /** Takes messages for people: the first failure of each kind with its stack. */
  readonly warn?: ((message: string) => void) | undefined;
}
