/** One engine for all calls of a session: each call goes to the agent of the trajectory that it names. */
import type { ChatEngine } from "../../../chat/endpoint.ts";
import { ApiError, type SamplingRequest } from "../../../chat/request.ts";
import type { Policy, RolloutTrajectory } from "../rollout.ts";
import type { TrajectoryKeys } from "./contract.ts";

/** A trajectory of a session: `label` is its name, or `name/group` where a group tells trajectories of one name apart. */
export interface NamedTrajectory extends RolloutTrajectory {
  readonly label: string;
}

export interface Roles {
  readonly engine: ChatEngine;
  /** Trajectories with calls, in the order of their first ones. */
  trajectories(): NamedTrajectory[];
  /** The label of a trajectory of this session, by its calls. */
  labelOf(trajectory: RolloutTrajectory): string | undefined;
  /** Refuses further calls; one that is running fails, so that no reply is recorded that is not trained on. */
  close(): void;
}

/**
 * @param options.name of calls that name no trajectory
 * @throws {ApiError} (its engine) for a call whose label is that of another name and group
 */
export function rolesOf(policy: Policy, options: { readonly name: string; readonly keys: TrajectoryKeys }): Roles {
  const agents = new Map<string, Policy>();
  /** Name and group that each label stands for. */
  const places = new Map<string, string>();
  let isOpen = true;
  const call = async <T>(run: () => Promise<T>): Promise<T> => {
    const drawn = await run();
    if (isOpen) return drawn;
    throw ended();
  };
  const agentOf = (request: SamplingRequest): Policy => {
    if (!isOpen) throw ended();
    const { name, group, label } = placeOf(request, options);
    const existing = agents.get(label);
    const place = JSON.stringify([name, group]);
    if (existing && places.get(label) !== place) throw clash(label, { name, group });
    if (existing) return existing;
    const agent = policy.agent(name);
    agents.set(label, agent);
    places.set(label, place);
    return agent;
  };
  return {
    engine: {
      model: policy.model,
      tokenizer: policy.tokenizer,
      chat: (request, at) => call(async () => agentOf(request).engine.chat(request, at)),
      complete: (request, at) => call(async () => agentOf(request).engine.complete(request, at)),
    },
    trajectories: () =>
      [...agents]
        .filter(([, agent]) => agent.steps.length > 0)
        .map(([label, agent]) => ({ ...agent.trajectory(), label })),
    labelOf({ steps }) {
      const id = steps[0]?.id;
      return [...agents].find(([, agent]) => agent.steps.some((step) => step.id === id))?.[0];
    },
    close() {
      isOpen = false;
    },
  };
}

/** Key under which the gateway puts the header `X-Trajectory`. */
const HEADER_KEY = "trajectory_name";

function placeOf({ metadata = {} }: SamplingRequest, { name, keys }: { name: string; keys: TrajectoryKeys }) {
  const named = textAt(metadata, keys.name) ?? textAt(metadata, HEADER_KEY) ?? name;
  const group = textAt(metadata, keys.group);
  return { name: named, group, label: group === undefined ? named : `${named}/${group}` };
}

/** A reward by this label could be that of either trajectory. */
function clash(label: string, { name, group }: { name: string; group: string | undefined }): ApiError {
  const named = group === undefined ? `the name ${name} without a group` : `the group ${group} of ${name}`;
  return new ApiError(
    `Cannot tell the trajectory of a call: ${named} has the label ${label}, which another name and group have already. Rename one of the two in the agent.`,
    { param: "metadata" },
  );
}

/** @throws {ApiError} for a value that names nothing */
function textAt(metadata: Readonly<Record<string, unknown>>, key: string | null): string | undefined {
  const value = key === null ? undefined : metadata[key];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "number" || (typeof value === "string" && value !== "")) return String(value);
  const param = `metadata.${key}`;
  throw new ApiError(
    `Cannot tell the trajectory of a call: ${param} must be a text or a number (${JSON.stringify(value)}). Correct the agent.`,
    { param },
  );
}

function ended(): ApiError {
  return new ApiError("Cannot sample: the session has ended. An attempt's calls end with its answer.", {
    status: 410,
    code: "session_ended",
  });
}
