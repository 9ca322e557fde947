/** Opens the backend that a run names: the one on this machine, a Tinker service, or one of the user's. */
import { registeredBackend } from "../backend/registry.ts";
import type { Backend } from "../backend.ts";
import type { Device } from "../compute/device.ts";
import { setting } from "../config/schema.ts";
import type { Io } from "./command.ts";
import { openLocalBackend } from "./local.ts";
import type { Session } from "./session.ts";

export interface OpenedTrainer {
  readonly backend: Backend;
  /** Where advantages are computed too. Absent: on the host. */
  readonly device?: Device;
  /** For people: what does the work. */
  readonly description: string;
}

/** @throws {ConfigError} for settings that the backend cannot open with. */
export async function openBackend(session: Session, io: Io): Promise<OpenedTrainer> {
  const name = setting(session.config, "rllm.backend");
  const open = registeredBackend(name);
  if (open) return { backend: await open({ config: session.config }), description: `backend ${name}` };
  if (name === "tinker") {
    const { openTinkerBackend } = await import("./tinker.ts");
    return openTinkerBackend(session, io);
  }
  const { backend, device } = await openLocalBackend(session);
  return { backend, device, description: `${device.info.kind}: ${device.info.description}` };
}
