/** The surroundings that a run needs of its program: where messages go, the environment, and what interrupts it. */
import type { Clock } from "../../leaves/clock.ts";
import type { Screen } from "../log/terminal.ts";

export interface RunIo extends Screen {
  /** Variables that settings and keys are read from. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Asks the run to end: it finishes its step and saves. */
  readonly signal: AbortSignal;
  /** Clock for waiting on other machines. Absent: the system's. */
  readonly clock?: Clock;
}
