/** Opens the backend that a run names: the one on this machine, a Tinker service, or one of the user's. */

import type { Device } from "../../../engine/compute/device.ts";
import type { Backend } from "../../../engine/contract/backend.ts";
import type { RewardScorer } from "../../../engine/contract/reward_model.ts";
import type { Teacher } from "../../../engine/contract/teacher.ts";
import { backends } from "../../backend/backends.ts";
import { setting } from "../../config/schema.ts";
import type { RunIo } from "../io.ts";
import type { ModelSession } from "../session.ts";
import { adoptCheckpoint } from "./checkpoint_shape.ts";
import { type LocalOpenOptions, openLocalBackend } from "./local_backend.ts";
import { checkRewardTokens, openRewardScorer, refuseRewardModel } from "./reward_scorer.ts";
import { openTeacher } from "./teacher.ts";

export interface OpenedTrainer<S extends ModelSession, B = Backend> {
  readonly backend: B;
  /** Device on which advantages are computed too. Absent: on the host. */
  readonly device?: Device;
  /** Description for people of what does the work. */
  readonly description: string;
  /** Teacher of a run with `distillation.enabled`, but for a student that is its own. */
  readonly teacher?: Teacher | undefined;
  /** Reward model of a run with `reward_model.enable`. */
  readonly rewardModel?: RewardScorer | undefined;
  /** The session, with what the checkpoint fixes in its configuration. */
  readonly session: S;
}

/**
 * @param options.checkpoint folder of the weights to continue from; the local backend takes its shape.
 * @throws {ConfigError} for settings that the backend, or the checkpoint, cannot open with.
 */
export async function openBackend<S extends ModelSession>(
  session: S,
  { io, ...options }: LocalOpenOptions & { readonly io: RunIo },
): Promise<OpenedTrainer<S>> {
  const name = setting(session.config, "rllm.backend");
  const open = backends.get(name);
  if (open) {
    refuseRewardModel(session.config, name);
    const teacher = await openTeacherOf(session, { io, ...options });
    const backend = await open({ config: session.config });
    return { backend, description: `backend ${name}`, session, teacher };
  }
  if (name === "tinker") {
    const { openTinkerBackend } = await import("./tinker_backend.ts");
    const teacher = await openTeacherOf(session, { io, ...options });
    return { ...(await openTinkerBackend(session, io)), session, teacher };
  }
  const { checkpoint, isTrained } = options;
  const adopted = checkpoint === undefined ? session : await adoptCheckpoint(session, checkpoint, { isTrained });
  const openFor = (on: Device) => openTeacherOf(adopted, { io, ...options, device: on });
  const rewardFor = (on: Device) => openRewardScorer(adopted.config, { io, device: on });
  const opened = await openLocalBackend(adopted, { ...options, teacher: openFor, rewardModel: rewardFor });
  const { backend, device, teacher, rewardModel } = opened;
  checkRewardTokens(rewardModel, backend);
  const description = `${device.info.kind}: ${device.info.description}`;
  return { backend, device, description, session: adopted, teacher, rewardModel };
}

async function openTeacherOf(
  { config }: ModelSession,
  { io, device, isTrained = true }: LocalOpenOptions & { readonly io: RunIo; readonly device?: Device },
): Promise<Teacher | undefined> {
  return isTrained ? openTeacher(config, { io, device }) : undefined;
}
