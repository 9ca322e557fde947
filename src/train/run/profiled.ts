/** `--profile`: watches the device and the loop, then writes the trace into the run's folder and prints the time by kernel. */
import { join } from "node:path";
import type { Device } from "../../engine/compute/device.ts";
import { Profile, type ProfileLimits } from "../../engine/compute/profile/profile.ts";
import { kernelTable, timeByKernel } from "../../engine/compute/profile/table.ts";
import { traceText } from "../../engine/compute/profile/trace.ts";
import { PROFILE_FILE } from "../log/run_files.ts";
import type { Run } from "../loop/contract.ts";
import { replaceFile } from "./files.ts";
import type { RunIo } from "./io.ts";

interface Watched {
  readonly device: Device | undefined;
  readonly description: string;
  readonly limits?: ProfileLimits;
}

/** A run under observation. */
export class Profiling {
  private readonly profile: Profile;
  private readonly description: string;

  constructor({ device, description, limits }: Watched) {
    this.profile = new Profile(limits);
    this.description = description;
    if (device) this.profile.attach(device);
  }

  /** Options of a run by which the profile receives its phases. */
  get parts(): Pick<Run, "onPhase"> {
    return { onPhase: (phase) => this.profile.span(phase) };
  }

  /** Writes the trace. @throws {ConfigError} where the folder cannot be written to */
  async end(dir: string, io: RunIo): Promise<void> {
    const { profile } = this;
    await profile.stop();
    const file = join(dir, PROFILE_FILE);
    replaceFile(file, traceText(profile, { device: this.description, ...facts(profile) }));
    const times = timeByKernel(profile);
    if (times.length > 0) io.err(`\n${kernelTable(times)}`);
    for (const [name, text] of Object.entries(facts(profile))) io.err(`profile  ${name}: ${text}\n`);
    io.err(`profile  ${file} (open it at https://ui.perfetto.dev)\n`);
  }
}

/** Returns the facts about what the trace lacks. */
function facts({ untimed, leftOut, start }: Profile): Record<string, string> {
  const { kernelsAfter, hostEvents, spans } = leftOut;
  const seconds = ((kernelsAfter ?? 0) - start) / 1000;
  return {
    ...(untimed !== undefined && { "no kernels": untimed }),
    ...(kernelsAfter !== undefined && {
      "kernels left out": `all after ${seconds.toFixed(1)} s, because the trace is full`,
    }),
    ...(hostEvents > 0 && { "host events left out": String(hostEvents) }),
    ...(spans > 0 && { "phases left out": String(spans) }),
  };
}
