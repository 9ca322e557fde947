/** The cause of a failure, from logs that Ray 2.60 wrote (recorded/) and from made-up ones. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { CauseFinder } from "../../../src/backend/ray/cause.ts";
import { LineSplitter } from "../../../src/backend/ray/lines.ts";

function causeOf(log: string) {
  const finder = new CauseFinder();
  const splitter = new LineSplitter((line) => finder.take(line));
  splitter.feed(log);
  splitter.end();
  return finder.cause();
}

const recorded = (name: string) => causeOf(readFileSync(new URL(`recorded/${name}.txt`, import.meta.url), "utf8"));

describe("in a log of Ray", () => {
  test("is the worker's exception with what led to it, not the waiting processes' repetitions", () => {
    expect(recorded("nested")).toEqual({
      worker: { name: "Worker", pid: 6157, ip: "127.0.0.1" },
      lines: [
        "KeyError: 'missing'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        '  File "/session/main.py", line 9, in step',
        '    raise ValueError(f"bad reward {x}") from e',
        "ValueError: bad reward 3",
      ],
      message: "ValueError: bad reward 3",
    });
  });

  test("is what the dead worker printed, though it arrives after the driver's error", () => {
    expect(recorded("worker_died")).toEqual({
      worker: { name: "Worker", pid: 14885 },
      lines: [
        "Traceback (most recent call last):",
        '  File "/session/main.py", line 10, in step',
        "    import nothing_here",
        "ModuleNotFoundError: No module named 'nothing_here'",
      ],
      message: "ModuleNotFoundError: No module named 'nothing_here'",
    });
  });

  test("is the error of an actor's constructor, with all lines of its message", () => {
    const cause = recorded("actor_creation")!;
    expect(cause.worker).toEqual({ name: "Bad", pid: 15563, ip: "127.0.0.1" });
    expect(cause.message).toBe("RuntimeError: CUDA out of memory\nTry this");
    expect(cause.lines[0]).toBe('  File "/session/main.py", line 18, in __init__');
  });

  test("is the driver's own error", () => {
    const cause = recorded("driver")!;
    expect(cause.worker).toBeUndefined();
    expect(cause.message).toBe("ModuleNotFoundError: No module named 'no_such_module'");
    expect(cause.lines.slice(0, 2)).toEqual([
      "Traceback (most recent call last):",
      '  File "/session/main.py", line 31, in <module>',
    ]);
  });

  test("is unknown for a driver that was killed", () => {
    expect(recorded("killed")).toBeUndefined();
  });
});

const traceback = (error: string, prefix = "") =>
  ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f()", error]
    .map((line) => `${prefix}${line}\n`)
    .join("");

describe("among several tracebacks", () => {
  test("the driver's last one counts, not one that it survived", () => {
    const log = `${traceback("ImportError: no flash_attn")}continuing\n${traceback("ValueError: the end")}`;
    expect(causeOf(log)?.message).toBe("ValueError: the end");
  });

  test("of interleaved workers, each keeps its own lines", () => {
    const a = traceback("ValueError: a", "(A pid=1) ").split("\n");
    const b = traceback("ValueError: b", "(B pid=2) ").split("\n");
    const log = a.flatMap((line, i) => [line, b[i]!]).join("\n");
    expect(causeOf(log)).toMatchObject({
      worker: { name: "A", pid: 1 },
      lines: ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f()", "ValueError: a"],
    });
  });

  test("one that follows from another process's failure gives way to that", () => {
    const first = traceback("ValueError: the cause", "(Rank pid=3) ");
    const log = first + traceback("torch.distributed.DistBackendError: NCCL error", "(Rank pid=4) ");
    expect(causeOf(log + traceback("EngineDeadError: see above"))?.message).toBe("ValueError: the cause");
    expect(causeOf(traceback("EngineDeadError: see above"))?.message).toBe("EngineDeadError: see above");
  });

  test("what a process prints while it ends does not count", () => {
    const log = `${traceback("ValueError: the end")}Exception ignored in: <function f>\n${traceback("OSError: closed")}`;
    expect(causeOf(log)?.message).toBe("ValueError: the end");
  });

  test("log lines after the exception are no part of its message; indented ones are", () => {
    const log = `${traceback("ValidationError: 1 error")}field\n  Input should be a number\n2026-11-23 INFO the end\nmore\n`;
    expect(causeOf(log)?.message).toBe("ValidationError: 1 error\nfield\n  Input should be a number");
    expect(causeOf(`${traceback("ValueError: x")}Set the environment variable HYDRA_FULL_ERROR=1\n`)?.message).toBe(
      "ValueError: x",
    );
  });

  test("the one handled first leads the lines, the last gives the message", () => {
    const handling = "\nDuring handling of the above exception, another exception occurred:\n\n";
    const cause = causeOf(traceback("KeyError: 1") + handling + traceback("ValueError: 2"))!;
    expect(cause.message).toBe("ValueError: 2");
    expect(cause.lines.filter((line) => line.includes("Error"))).toEqual(["KeyError: 1", "ValueError: 2"]);
    expect(cause.lines.filter((line) => line.startsWith("During"))).toHaveLength(1);
  });

  test("one of many frames keeps its start and its end", () => {
    const frames = Array.from({ length: 1_000 }, (_, i) => `  File "a.py", line ${i}, in f\n`).join("");
    const { lines } = causeOf(`Traceback (most recent call last):\n${frames}RecursionError: too deep\n`)!;
    expect(lines).toHaveLength(200);
    expect(lines[1]).toContain("line 0,");
    expect(lines.at(-2)).toContain("line 999,");
    expect(lines.at(-1)).toBe("RecursionError: too deep");
  });

  test("a thousand of them take bounded memory, and the last still counts", () => {
    const finder = new CauseFinder();
    for (let i = 0; i < 10_000; i++)
      for (const text of traceback(`ValueError: ${i} ${"x".repeat(5_000)}`)
        .trimEnd()
        .split("\n"))
        finder.take({ text });
    for (let i = 0; i < 100_000; i++) finder.take({ text: `  frame ${i}` });
    expect(finder.cause()?.message).toMatch(/^ValueError: 9999 x/);
    expect(JSON.stringify(finder).length).toBeLessThan(500_000);
  });
});
