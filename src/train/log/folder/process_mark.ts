/** Identifies a process in a file, so that another process can tell later whether it still runs. */
import { nodeModule } from "../../../leaves/node_module.ts";

const { execFile } = /* @__PURE__ */ nodeModule("node:child_process");
const { readFile, readlink } = /* @__PURE__ */ nodeModule("node:fs/promises");
const { hostname } = /* @__PURE__ */ nodeModule("node:os");

/** Identifies one process. Plain JSON. */
export interface ProcessMark {
  readonly pid: number;
  readonly host: string;
  /** Boot and PID namespace on Linux: PIDs can be compared only where it is equal. Empty on other systems. */
  readonly space: string;
  /** Start of the process, in the system's own form: distinguishes it from a later one with the same PID. */
  readonly born?: string;
}

/** The mark of this process. */
export async function markThisProcess(): Promise<ProcessMark> {
  const { pid } = process;
  const born = await birthOf(pid);
  return { pid, host: hostname(), space: await pidSpace(), ...(born && { born }) };
}

/** True when the PID of `mark` means something here: same host, same boot, same PID namespace. */
export async function isFromHere(mark: ProcessMark): Promise<boolean> {
  return mark.host === hostname() && mark.space === (await pidSpace());
}

/** Whether the process still runs. Meaningful only where {@link isFromHere} holds. A zombie does not run. */
export async function isRunning({ pid, born }: ProcessMark): Promise<boolean> {
  try {
    process.kill(pid, 0);
  } catch (error) {
    // EPERM: it runs and belongs to another user.
    if ((error as NodeJS.ErrnoException).code !== "EPERM") return false;
  }
  const stat = await statOf(pid);
  if (stat?.state === "Z") return false;
  if (born === undefined) return true;
  const now = await birthOf(pid);
  return now === undefined || now === born;
}

async function pidSpace(): Promise<string> {
  const boot = await readFile("/proc/sys/kernel/random/boot_id", "utf8").catch(() => "");
  const namespace = await readlink("/proc/self/ns/pid").catch(() => "");
  return [boot.trim(), namespace].filter(Boolean).join(" ");
}

/** Clock ticks since boot on Linux, a date where there is `ps`; undefined elsewhere. */
async function birthOf(pid: number): Promise<string | undefined> {
  const stat = await statOf(pid);
  if (stat) return stat.start;
  if (process.platform === "win32" || process.platform === "linux") return undefined;
  return new Promise((resolve) => {
    const env = { ...process.env, LC_ALL: "C", TZ: "UTC" };
    execFile("ps", ["-o", "lstart=", "-p", String(pid)], { env }, (error, stdout) =>
      resolve(error ? undefined : stdout.trim() || undefined),
    );
  });
}

/** Returns the state of a process from /proc; undefined where there is none. */
async function statOf(pid: number): Promise<{ state: string; start: string } | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => undefined);
  // The command's name, in parentheses, may hold spaces and parentheses.
  const fields = text?.slice(text.lastIndexOf(")") + 2).split(" ");
  return fields && { state: fields[0]!, start: fields[19]! };
}
