/** What a run needs of the program that opens it: where messages go, the environment, and what interrupts it. */
import type { Clock } from "../clock.ts";
import type { Screen } from "../log/terminal.ts";

export interface RunIo extends Screen {
  /** Variables that settings and keys are read from. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Asks the run to end: it finishes its step and saves. */
  readonly signal: AbortSignal;
  /** What a run waits by for other machines. Absent: the system's. */
  readonly clock?: Clock;
}
