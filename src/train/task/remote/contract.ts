/**
 * Agents in other processes: what a run sends them, what they answer, and what a run needs of a gateway. An attempt is one
 * `POST` to the agent; its model calls go to the session's address; its answer, or a callback, ends it.
 */
import type { ChatEngine } from "../../../chat/endpoint.ts";
import type { SessionOutcome } from "../../../engine/contract/trace.ts";
import type { Task, TerminationReason } from "../../data/types.ts";

/** The body of the `POST` to `task.agent`. */
export interface AgentRequest {
  readonly task: Task;
  readonly session_id: string;
  /** Address for OpenAI's clients: it ends in `/v1`. */
  readonly base_url: string;
  /** Works for this session alone, and until the attempt ends. */
  readonly api_key: string;
  readonly model: string;
  readonly is_validation: boolean;
  readonly rollout_index: number;
  /** `rllm.agent.agent_args`. */
  readonly agent_args: Readonly<Record<string, unknown>>;
  /** `rllm.agent.max_steps`: turns that an agent should take at most. */
  readonly max_steps: number;
  /** Optimiser steps in the weights when the attempt started. */
  readonly weight_version: number;
  /** An agent that answers 202 posts its report here, with the session's key. */
  readonly callback_url: string;
}

/** An agent's report: the answer to the `POST`, or the body of its callback. */
export interface AgentReport {
  /** Reward of all trajectories. Absent: `task.reward` or an evaluator judges. */
  readonly reward?: number;
  /** Default: the reward is above 0. */
  readonly is_correct?: boolean;
  /** Default: `env_done`, or `max_response_length_exceeded` when the last call ran out of tokens. */
  readonly termination_reason?: TerminationReason;
  /** Averaged over the batch as `batch/<name>`. */
  readonly metrics?: Readonly<Record<string, number>>;
  /** Kept with every trajectory. */
  readonly signals?: Readonly<Record<string, number>>;
  /** Rewards by name, which `gdpo` normalises each on its own; kept with the signals. */
  readonly components?: Readonly<Record<string, number>>;
  /** Rewards of single trajectories, by name or by `name/group`; they take precedence over `reward`. */
  readonly trajectory_rewards?: Readonly<Record<string, number>>;
  /** Kept with the episode. */
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** Opens sessions that agents in other processes can reach. */
export interface SessionHost {
  /** @throws when the session cannot be opened */
  openSession(request: RemoteSessionRequest): Promise<RemoteSession>;
}

export interface RemoteSessionRequest {
  readonly session_id: string;
  /** Answers the session's calls. */
  readonly engine: ChatEngine;
  readonly metadata: Readonly<Record<string, unknown>>;
}

export interface RemoteSession {
  readonly base_url: string;
  readonly api_key: string;
  readonly callback_url: string;
  /** The body that the agent posts to `callback_url`; never rejects. */
  readonly reported: Promise<unknown>;
  /** Looks for that body, where nothing else brings it here: used once the agent has answered 202. */
  readonly poll?: ((signal: AbortSignal) => Promise<unknown>) | undefined;
  /** Refuses further calls. Of several calls the first counts. */
  end(outcome: Omit<SessionOutcome, "ended_at">): Promise<void>;
}

/** Metadata keys of a model call that say which trajectory it belongs to. Null: calls are not told apart by metadata. */
export interface TrajectoryKeys {
  /** `rllm.sdk.processing.traj_name_key`: the trajectory's name, its role. */
  readonly name: string | null;
  /** `rllm.sdk.processing.groupby_key`: calls of one role with different values are different trajectories. */
  readonly group: string | null;
}
