/** The outside world of a real process: streams, signals, environment. */

import { decodeUtf8 } from "../../leaves/utf8.ts";
import { forTerminal, processScreen } from "../../train/log/terminal.ts";
import type { Io } from "../command.ts";
import { showLoading } from "./loading.ts";
import { listenToSignals } from "./signals.ts";
import { openTyping } from "./typing.ts";
import { startWatchdog } from "./watchdog.ts";

export function processIo(): Io {
  const { env, stderr, stdout, stdin } = process;
  // A reader that has seen enough (`| head`) is no error.
  stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EPIPE") process.exit(0);
    throw error;
  });
  // The reader of the messages is gone; the work continues.
  stderr.on("error", () => {});
  const screen = processScreen();
  const io: Io = {
    ...listenToSignals(screen.err),
    ...screen,
    get columns() {
      return screen.columns;
    },
    begin() {
      startWatchdog();
      showLoading(io);
    },
    // A program reads exactly what was written; only a terminal gets escapes spelled out.
    out: (text) => void stdout.write(stdout.isTTY ? forTerminal(text) : text),
    env,
    async stdin() {
      const parts: Buffer[] = [];
      for await (const part of stdin) parts.push(part as Buffer);
      return decodeUtf8(Buffer.concat(parts), { what: "standard input", file: "stdin" });
    },
    typing: (history) => openTyping({ history, signal: io.signal }),
  };
  return io;
}
