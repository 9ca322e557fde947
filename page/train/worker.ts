/** The worker: everything that computes. */
import "../../src/train/task/environments.ts";
import "../../examples/stories/reward.ts";
import { WorkerSession } from "./engine/worker_session.ts";
import { PACKAGED } from "./packaged.ts";
import type { Command, News } from "./protocol.ts";

/** What a worker has of its global scope; the DOM's types are those of a window. */
const scope = globalThis as unknown as {
  postMessage(news: News, transfer: readonly Transferable[]): void;
  onmessage: ((event: MessageEvent<Command>) => void) | null;
};

const session = new WorkerSession(
  (news) => scope.postMessage(news, news.type === "exported" ? [news.bytes.buffer] : []),
  (path) => PACKAGED[path],
);
scope.onmessage = ({ data }) => void session.receive(data);
