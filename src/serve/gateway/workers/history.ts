/** Answers of a session's workers, from which the record sees which call a prompt continues. */
import { HistoryTree } from "../../../chat/history.ts";
import { readMessages } from "../../../chat/messages.ts";
import { PrefixTree } from "../../../chat/prefix_tree.ts";
import type { ChatMessage } from "../../../engine/contract/text.ts";
import type { PromptOrigin, TraceRecord } from "../../../engine/contract/trace.ts";

export class WorkerHistory {
  private readonly sampled = new PrefixTree<string>();
  private readonly histories = new HistoryTree();
  private readonly replies = new Set<number>();

  constructor(traces: readonly TraceRecord[] = []) {
    for (const trace of traces) this.add(trace);
  }

  add({ prompt_token_ids, completion_token_ids, trace_id, messages, response_message }: TraceRecord): void {
    const whole = [...prompt_token_ids, ...completion_token_ids];
    if (whole.length > 0) this.sampled.add(whole, trace_id);
    const conversation = read([...messages, response_message as ChatMessage]);
    if (conversation) this.replies.add(this.histories.add(conversation));
  }

  /** How a worker's prompt came about. The worker rendered it: where it repeats a reply in other tokens, it diverged. */
  originOf(prompt: { readonly ids: readonly number[]; readonly messages: readonly ChatMessage[] }): {
    readonly origin: PromptOrigin;
    readonly parent: string | null;
  } {
    const parent = this.sampled.longestOf(prompt.ids) ?? null;
    if (prompt.messages.length === 0) return { origin: "tokens", parent };
    if (parent !== null) return { origin: "continued", parent };
    const nodes = this.histories.find(read(prompt.messages) ?? []);
    const isKnown = nodes.some((node) => node !== undefined && this.replies.has(node));
    return { origin: isKnown ? "diverged" : "rendered", parent };
  }
}

/**
 * Returns messages in the form that histories compare; undefined for messages that only the worker understands, such as
 * images.
 */
function read(messages: readonly ChatMessage[]): ChatMessage[] | undefined {
  try {
    return readMessages(messages);
  } catch {
    return undefined;
  }
}
