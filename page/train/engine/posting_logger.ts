/** A logger that posts every record to the page: each is a boundary between steps. */
import type { Logger, LogRecord } from "../../../src/train/log/logger.ts";
import { groupsLine, sampleLines } from "../../../src/train/log/record_lines.ts";
import type { GroupView, Post } from "../protocol.ts";
import type { Boundary } from "./boundary.ts";

export interface PostingOptions {
  readonly post: Post;
  readonly boundary: Boundary;
  /** Some groups of a training step, token by token. */
  readonly rollouts: (record: LogRecord) => readonly GroupView[];
}

export class PostingLogger implements Logger {
  readonly name = "page";
  private readonly options: PostingOptions;

  constructor(options: PostingOptions) {
    this.options = options;
  }

  async log(record: LogRecord): Promise<void> {
    const { phase, step, totalSteps, metrics, note } = record;
    const { post, boundary, rollouts } = this.options;
    post({
      ...{ type: "record", phase, step, totalSteps, metrics },
      samples: sampleLines(record),
      groups: groupsLine(record),
      ...(phase === "train" && { rollouts: rollouts(record) }),
      ...(note !== undefined && { note }),
    });
    await boundary.here();
  }

  progress(done: number, total: number): void {
    this.options.post({ type: "progress", done, total });
  }

  warn = (message: string): void => this.options.post({ type: "warned", message });
}
