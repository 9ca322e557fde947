/** Meaning of Ctrl-C for a job on a cluster. */
import type { Io } from "../command.ts";

/**
 * Asks where somebody can answer. Else the job is stopped: without this process nothing judges its rollouts.
 */
export async function leaveOrStop(io: Io): Promise<"leave" | "stop"> {
  const typing = io.isTerminal ? io.typing?.([]) : undefined;
  if (!typing) return "stop";
  try {
    if (!typing.isTerminal) return "stop";
    io.err("\nWhile this process is away, the job's rewards and agents fail; --attach serves them again.\n");
    for (;;) {
      const typed = await typing.next("Stop the job, or leave it running? [stop/leave] ");
      if (typed.kind !== "text" || /^\s*s(top)?\s*$/i.test(typed.text)) return "stop";
      if (/^\s*l(eave)?\s*$/i.test(typed.text)) return "leave";
    }
  } finally {
    typing.close();
  }
}
