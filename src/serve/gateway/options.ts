/** Options of a gateway. */
import type { TextThread } from "../../chat/text_work.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import type { TraceStore } from "../../engine/contract/trace.ts";
import type { GatewayLimits } from "./limits.ts";
import type { ModelHost } from "./sessions.ts";
import type { FieldSettings } from "./workers/fields.ts";
import type { WorkerPoolOptions } from "./workers/pool.ts";

export interface GatewayOptions {
  /** Models that sessions share. Absent: only sessions with an engine of their own, and workers. */
  readonly engines?: ModelHost | undefined;
  readonly store: TraceStore;
  /** Answers wait until their trace is stored. Default false. @see rLLM's `sync_traces` */
  readonly syncTraces?: boolean | undefined;
  readonly limits?: Partial<GatewayLimits> | undefined;
  /** Replaces the model that requests name. @see rLLM's `model` */
  readonly model?: string | undefined;
  readonly workers?: (WorkerPoolOptions & FieldSettings & CumulativeMode) | undefined;
  /** Handler of `POST /admin/reload`; resolves when new calls use what it loaded. */
  readonly reload?: (() => Promise<void>) | undefined;
  /** Takes one line for the operator. */
  readonly log?: ((line: string) => void) | undefined;
}

/** How sessions continue at workers. */
export interface CumulativeMode {
  /**
   * The tokenizer of the workers' model, with its chat template: later turns of a session then start with the exact tokens
   * of earlier ones. Absent: workers render prompts. @see rLLM's `cumulative_token_mode`
   */
  readonly tokenizer?: Tokenizer | undefined;
  /** Renders and encodes long prompts with it. Default: the event loop does. */
  readonly thread?: TextThread | undefined;
}
