/** What a person sees and has chosen. */
import type { SessionList, SessionView } from "../../src/serve/gateway/page/trace_data.ts";

/** What the color of a sampled token says. */
export type Coloring = "logprob" | "mask";

export const state = {
  list: undefined as SessionList | undefined,
  /** Sessions asked for. */
  limit: 100,
  search: "",
  /** Id of the session that is shown. */
  open: undefined as string | undefined,
  view: undefined as SessionView | undefined,
  coloring: "logprob" as Coloring,
  /** Calls show their tokens; else the text of messages. */
  showsTokens: true,
  fault: "",
};

/** Sessions that fit the search: by id, title, model or metadata. */
export function found() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  return (state.list?.sessions ?? []).filter((session) => {
    const text = JSON.stringify([session.session_id, session.title, session.model, session.metadata]).toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
