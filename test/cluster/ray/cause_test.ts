/** The cause of a failure, from logs that Ray 2.60 wrote (recorded/) and from made-up ones. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { CauseFinder } from "../../../src/cluster/ray/cause.ts";
import { LineSplitter } from "../../../src/cluster/ray/lines.ts";
import { sectionsOf } from "../../../src/cluster/ray/sections.ts";

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

/** Lines `1`, `2`, ... */
const numbered = (count: number) => Array.from({ length: count }, (_, i) => `${i + 1}\n`).join("");
const traceback = (error: string, prefix = "") =>
  ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f()", error]
    .map((line) => `${prefix}${line}\n`)
    .join("");

const FRAME = '  File "a.py", line 1, in f\n';
const START = "Traceback (most recent call last):\n";
const PAUSE = "2026-11-23 INFO the run goes on\n";

describe("a traceback", () => {
  test.each<[what: string, log: string, message: string | undefined]>([
    ["begins with its line, indented too", `  ${START}  ${FRAME}ValueError: x\n`, "ValueError: x"],
    ["begins with nothing before it", `log: ${START}${FRAME}ValueError: x\n`, undefined],
    ["begins with nothing behind it", `Traceback (most recent call last): gone\n${FRAME}ValueError: x\n`, undefined],
    ["of Ray needs no such line", `RayTaskError: ray::step() (pid=12)\n${FRAME}ValueError: x\n`, "ValueError: x"],
    ["is none without a process", `a ray:: (pid=12)\n${FRAME}ValueError: x\n`, undefined],
    ["may end in an exception that looks like a log line", `${START}${FRAME}    f()\nCUDA_ERROR: x\n`, "CUDA_ERROR: x"],
    ["of Ray may have no frames left", `${START}${FRAME}E: ray::f() (pid=5)\nCUDA_ERROR: x\n`, "CUDA_ERROR: x"],
    ["may have no frames at all", `E: ray::f() (pid=5)\n${START}CUDA_ERROR: x\n`, "CUDA_ERROR: x"],
    ["may have long frames", `${START}${FRAME}${"    a,\n".repeat(30)}ValueError: x\n${PAUSE}`, "ValueError: x"],
    ["has ten further lines of a message", `${traceback("E: 0")}${numbered(10)}`, `E: 0\n${numbered(10).trimEnd()}`],
    ["has no more than ten", `${traceback("E: 0")}${numbered(12)}`, `E: 0\n${numbered(10).trimEnd()}`],
    [
      "ends before what looks like a chain",
      `${traceback("E: 0")}a: During handling of the above exception, another\n${PAUSE}`,
      "E: 0\na: During handling of the above exception, another",
    ],
    ["ends before what is told of it", `${traceback("E: 0")}on Exception ignored in\n${traceback("E: 1")}`, "E: 1"],
    [
      "in a message counts",
      `${traceback("E: failed:")}ray::Worker.step() (pid=7)\n${FRAME}${"    a,\n".repeat(12)}CUDA_ERROR: x\n`,
      "CUDA_ERROR: x",
    ],
    [
      "of a message goes on",
      `${traceback("E: failed:")}${FRAME}${"    a,\n".repeat(12)}CUDA_ERROR: x\n`,
      `E: failed:\n${FRAME}${"    a,\n".repeat(12)}CUDA_ERROR: x`,
    ],
    [
      "of a message begins with its frame",
      `${traceback("E: failed:")}see ${FRAME}${PAUSE}`,
      `E: failed:\nsee ${FRAME.trimEnd()}`,
    ],
    ["that breaks off has no message", `${START}${FRAME}\n${PAUSE}`, ""],
    ["is none where it is about a process's end", `Exception ignored in: f\n${traceback("E: 0")}`, undefined],
  ])("%s", (_, log, message) => {
    expect(causeOf(log)?.message).toBe(message);
  });

  test.each([
    ...["2026-11-23 02:00", "02:00:11 a", "[rank0]: a", "(raylet) a", "INFO: a", "my_WARNING a", "ERROR a", "DEBUG"],
    ...["step:3 - a:1", "Set the environment variable A"],
  ])("ends before the line %j", (line) => {
    expect(causeOf(`${traceback("E: 0")}more\n${line}\nand more\n`)?.message).toBe("E: 0\nmore");
  });

  test.each(["at 2026-11-23", "see [1]", "INFORMATION: a", "ERRORS a", "substep:3", "a2:00", "02:0a", "step:a"])(
    "does not end before the line %j",
    (line) => {
      expect(causeOf(`${traceback("E: 0")}${line}\n`)?.message).toBe(`E: 0\n${line}`);
    },
  );

  test("of which each line is too long is cut", () => {
    expect(causeOf(traceback(`E: ${"x".repeat(2_000)}`))!.message).toHaveLength(1_000);
  });

  test("goes on after a chain over an empty line, and a log line in between ends it", () => {
    const chain = "\nDuring handling of the above exception, another exception occurred:\n\n";
    expect(causeOf(`${traceback("E: 0")}${chain}${PAUSE}${PAUSE}`)!.lines).not.toContain(PAUSE.repeat(2).trimEnd());
    expect(
      causeOf(`${traceback("E: 0")}${chain}${PAUSE}${PAUSE}`)!.lines.filter((it) => it === PAUSE.trimEnd()),
    ).toHaveLength(1);
  });
});

describe("the cause", () => {
  const end = traceback("EngineDeadError: see above");
  const of = (pid: number, error: string, ip = "") => traceback(error, `(Rank pid=${pid}${ip && `, ip=${ip}`}) `);

  test("is a worker's, not an error that the driver survived", () => {
    expect(causeOf(traceback("ImportError: no flash_attn") + of(3, "ValueError: x") + end)?.message).toBe(
      "ValueError: x",
    );
  });

  test("is the driver's own error, not one that a worker survived", () => {
    expect(causeOf(of(3, "ImportError: x") + traceback("KeyError: 'y'"))).toMatchObject({
      ...{ message: "KeyError: 'y'", worker: undefined },
    });
  });

  test("is a worker's where the driver prints nothing", () => {
    expect(causeOf(of(3, "ValueError: x"))).toMatchObject({ message: "ValueError: x", worker: { pid: 3 } });
  });

  test("keeps workers of one number on two machines apart", () => {
    const [a, b] = ["10.0.0.1", "10.0.0.2"].map((ip) => of(3, `ValueError: ${ip}`, ip).split("\n"));
    const log = a!.flatMap((line, i) => [line, b![i]!]).join("\n");
    expect(causeOf(log)).toMatchObject({ message: "ValueError: 10.0.0.1", lines: { length: 4 } });
  });

  test("is of the process that the error names, the last of its errors, else the first of all", () => {
    const errors =
      of(3, "ValueError: 3") + of(14, "ImportError: x") + of(14, "ValueError: 14") + of(4, "ValueError: 4");
    const died = (line: string) => causeOf(errors + traceback(`ActorDiedError: gone\n${line}`))?.message;
    expect(["\tpid: 14", "pid: 14", "   pid: 14"].map(died)).toEqual(Array(3).fill("ValueError: 14"));
    expect(["my pid: 14", "pid: 14 of 20", "pid: 99", "pid: a"].map(died)).toEqual(Array(4).fill("ValueError: 3"));
    const raised = (pid: number) =>
      causeOf(`${errors}E: ray::Engine.run() (pid=${pid})\n${FRAME}EngineDeadError: x\n`)?.message;
    expect([raised(14), raised(4), raised(99)]).toEqual(["ValueError: 14", "ValueError: 4", "ValueError: 3"]);
  });

  test("of a process that only follows is none of its own", () => {
    expect(
      causeOf(of(3, "NCCL error") + of(4, "ValueError: x") + traceback("ActorDiedError: a\npid: 3"))?.message,
    ).toBe("ValueError: x");
  });

  test.each([
    [0, "ValueError: x"],
    [31, "ValueError: x"],
    [32, "EngineDeadError: see above"],
    [33, "ValueError: x"],
    [63, "ValueError: x"],
  ])("is found among the first and the last 32 tracebacks of 65: after %i others it is %s", (before, message) => {
    const others = (count: number) => of(3, "NCCL error").repeat(count);
    expect(causeOf(others(before) + of(3, "ValueError: x") + others(63 - before) + end)?.message).toBe(message);
  });

  test("is of the process that failed first, also where that printed nothing more", () => {
    const log = of(3, "ValueError: first") + of(4, "ValueError: then") + of(4, "ValueError: last") + end;
    expect(causeOf(log)?.message).toBe("ValueError: first");
  });

  test("has the exceptions of the process that raised it, all of them and no others", () => {
    const chain = "\nThe above exception was the direct cause of the following exception:\n\n";
    const raised = (process: string, error: string) => `ray::${process}\n${FRAME}${error}\n`;
    const cause = causeOf(
      `E: ${raised("Worker.step() (pid=2)", "KeyError: 1")}${chain}${raised("Runner.run() (pid=1)", "ValueError: 2")}${chain}${traceback("ValueError: 3")}`,
    )!;
    expect(cause).toMatchObject({ worker: { name: "Runner", pid: 1 }, message: "ValueError: 3" });
    expect(cause.lines.filter((line) => line.includes("Error"))).toEqual(["ValueError: 2", "ValueError: 3"]);
  });
});

describe("the sections of an error", () => {
  const worker = { name: "W", pid: 3 };
  test.each<[what: string, lines: string[], sections: [lines: string[], message: string, name?: string][]]>([
    ["a message over several lines", ["E: a  b", "", "c", ""], [[["E: a  b", "", "c"], "E: a  b\nc"]]],
    ["no message", [START.trim(), "  File x", ""], [[[START.trim(), "  File x"], ""]]],
    ["no message of two processes", ["  a", "ray::f() (pid=4)", "  b"], [[["  b"], "", "f"]]],
    [
      "markers under code",
      ["  F", "    a.b()", "    ~~^^^  ~", "E: a"],
      [[["  F", "    a.b()", "    ~~^^^  ~", "E: a"], "E: a"]],
    ],
    [
      "markers under nothing",
      ["    ^^^", "  F", "    ^^", "E: a    b", "   ^^"],
      [[["  F", "E: a    b"], "E: a    b"]],
    ],
    ["markers twice", ["    a()", "    ^^^", "    ^^^^", "E: a"], [[["    a()", "    ^^^", "E: a"], "E: a"]]],
    [
      "what looks like markers",
      ["x ^^", "   ^^ a", "   ^a", "^^"],
      [[["x ^^", "   ^^ a", "   ^a", "^^"], "x ^^\n   ^^ a\n   ^a\n^^"]],
    ],
    [
      "a traceback that follows from nothing",
      ["E: a", "", START.trim(), "E: b"],
      [[["E: a", START.trim(), "E: b"], `E: a\n${START.trim()}\nE: b`]],
    ],
    [
      "a call that follows from nothing",
      ["E: a", "", "ray::A.b.f() (pid=4, ip=::1)", "E: b"],
      [
        [["E: a"], "E: a", "W"],
        [["E: b"], "E: b", "A.b"],
      ],
    ],
    [
      "two exceptions",
      ["E: a", "", "During handling of the above exception, another one:", "", "", START.trim(), "E: b"],
      [
        [["E: a"], "E: a"],
        [["", "During handling of the above exception, another one:", "", START.trim(), "E: b"], "E: b"],
      ],
    ],
  ])("%s", (_, lines, sections) => {
    expect(sectionsOf(lines, worker).map((it) => [it.lines, it.message, it.worker!.name])).toEqual(
      sections.map(([kept, message, name = "W"]) => [kept, message, name]),
    );
  });

  test("name the process that Ray names, with its machine where Ray gives it", () => {
    const found = (line: string) => sectionsOf([line, "E: a"], undefined)[0]!.worker;
    expect(found("ray::A.run() (pid=12, ip=10.0.0.7, actor_id=1)")).toEqual({ name: "A", pid: 12, ip: "10.0.0.7" });
    expect(found("E: ray::my task() (pid=12)")).toEqual({ name: "my task", pid: 12 });
    expect(found("xray::f() (pid=12)")).toBeUndefined();
  });
});

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
