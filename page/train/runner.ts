/** A run's worker: started when needed, thrown away by a reset. */
import type { Command, News } from "./protocol.ts";

export class Runner {
  private worker: Worker;
  private readonly onNews: (news: News) => void;

  constructor(onNews: (news: News) => void) {
    this.onNews = onNews;
    this.worker = this.open();
  }

  send(command: Command): void {
    this.worker.postMessage(command);
  }

  /** Ends whatever runs, and frees its memory. */
  reset(): void {
    this.worker.terminate();
    this.worker = this.open();
  }

  close(): void {
    this.worker.terminate();
  }

  private open(): Worker {
    const worker = new Worker(new URL("worker.js", document.baseURI), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<News>) => this.onNews(data);
    worker.onerror = ({ message }) =>
      this.onNews({
        type: "failed",
        message: `Cannot run the worker: ${message || "its script was not loaded"}. Reload the page.`,
      });
    return worker;
  }
}
