/** Numbers the beginnings of conversations, so that equal ones are found without comparing every message again. */

import type { ChatMessage } from "../engine/contract/text.ts";
import { stringifyJson } from "../leaves/json.ts";

/** The conversation without messages. */
const ROOT = 0;

/**
 * A tree of conversations: a node is one beginning, and its children are the messages that followed it. Messages are
 * equal by their text and their tool calls: clients drop ids and reasoning. Memory grows by one message per new node.
 */
export class HistoryTree {
  private readonly nodes = new Map<string, number>();

  /** The node of each beginning: entry i is that of the first i + 1 messages, undefined where it was never added. */
  find(messages: readonly ChatMessage[]): (number | undefined)[] {
    let node: number | undefined = ROOT;
    return messages.map((message) => {
      node = node === undefined ? undefined : this.nodes.get(edge(node, message));
      return node;
    });
  }

  /** The node of the whole conversation, which is added where it is new. */
  add(messages: readonly ChatMessage[]): number {
    return messages.reduce((node, message) => {
      const key = edge(node, message);
      const child = this.nodes.get(key);
      if (child !== undefined) return child;
      const added = this.nodes.size + 1;
      this.nodes.set(key, added);
      return added;
    }, ROOT);
  }
}

function edge(node: number, message: ChatMessage): string {
  return `${node}${messageKey(message)}`;
}

/** Identifies a message by its role, its text and its tool calls. */
export function messageKey({ role, content, tool_calls = [] }: ChatMessage): string {
  return stringifyJson([role, content, tool_calls.map((call) => call.function)]);
}
