import { expect, test } from "vitest";
import { type CommandProgram, runProgram } from "../../src/cli/front.ts";
import { PROGRAM } from "../../src/cli/program.ts";
import { grpu } from "../fixtures/cli.ts";

test.each(PROGRAM.commands)("$path --help shows usage, options and examples on standard output", async (command) => {
  const { code, out, err } = await grpu([...command.path.split(" "), "--help"]);
  expect(code).toBe(0);
  expect(err).toBe("");
  expect(out).toContain(`Usage: grpu ${command.path}`);
  expect(command.examples.length).toBeGreaterThan(0);
  for (const example of command.examples) {
    expect(out).toContain(example);
    expect(example).toContain(`grpu ${command.path}`);
  }
  for (const option of command.options ?? []) expect(out).toContain(option.flag);
});

test("grpu --help lists every command", async () => {
  const { out } = await grpu(["--help"]);
  for (const { path } of PROGRAM.commands) expect(out).toContain(path.split(" ")[0]);
});

test.each([
  [["trian"], /unknown command 'trian'\n\(Did you mean train\?\)/],
  [["model", "scroe"], /Did you mean score/],
  [["train", "--devise", "cpu"], /Did you mean --device/],
  [["train", "--device", "gpu"], /Allowed choices are auto, webgpu, cpu/],
  [["sample", "--prompt", "x"], /required option '--model <DIR>'/],
  [["device", "extra"], /device takes no argument: extra/],
  [["train", "examples/arithmetik/run.yaml"], /no such file.*Did you mean examples\/arithmetic\/run.yaml\?/, 4],
  [["train", "examples/arithmetic/run.yaml", "rllm.rollout.nn=3"], /Did you mean rllm.rollout.n\?/, 3],
  [["train", "examples/arithmetic/run.yaml", "task.name=arithmetc"], /arithmetc/, 3],
  [
    ["train", "examples/arithmetic/run.yaml", "--import", "examples/stories/rewards.ts"],
    /Did you mean examples\/stories\/reward.ts/,
    4,
  ],
  [["model", "generate", "--model", "nowhere", "--tokens", "1,x"], /ids like 1,2,3/],
  [["model", "generate", "--model", "nowhere", "--tokens", "1", "--max-tokens", "0"], /--max-tokens.*at least 1/],
])("%j is refused with what to do", async (args, message, status = 2) => {
  const { code, out, err } = await grpu(args);
  expect(err).toMatch(message);
  expect(err.startsWith("grpu: ")).toBe(true);
  expect(out).toBe("");
  expect(code).toBe(status);
});

test("an error that is nobody's message names its kind and how to see the stack", async () => {
  const program: CommandProgram = {
    ...PROGRAM,
    commands: [
      {
        path: "break",
        summary: "",
        examples: [],
        run: () => {
          throw new TypeError("x is undefined");
        },
      },
    ],
  };
  const text: string[] = [];
  const io = { err: (part: string) => void text.push(part), out: () => {}, env: {} };
  const rest = {
    isTerminal: false,
    color: false,
    columns: 80,
    signal: new AbortController().signal,
    stdin: async () => "",
  };
  expect(await runProgram(program, ["break"], { ...io, ...rest })).toBe(1);
  expect(text.join("")).toBe("grpu: TypeError: x is undefined (GRPU_DEBUG=1 prints the stack)\n");
});
