/** A store that keeps nothing, for a gateway that only serves. */
import type { SessionRecord, TraceRecord } from "../contract/trace.ts";
import { MemoryTraceStore } from "./memory.ts";

/** Takes traces and sessions, and forgets them at once. */
export class UnrecordedStore extends MemoryTraceStore {
  override async putTrace(_: TraceRecord): Promise<void> {}
  override async putSession(_: SessionRecord): Promise<void> {}
}
