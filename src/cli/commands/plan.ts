/** `grpu plan`: what a run will hold in memory, before anything is allocated. */
import type { Command, Input, Io } from "../command.ts";
import { DEVICE, deviceOverride, IMPORT, importsOf } from "../options.ts";
import { EXIT_FAILED, EXIT_OK } from "../process/exit.ts";

export const planCommand: Command = {
  path: "plan",
  summary: "show what a run will hold in memory, and what to change where it does not fit",
  args: "[config.yaml] [key=value ...]",
  options: [
    {
      flag: "--memory",
      value: "SIZE",
      describe: "plan for a typical GPU with this budget (8GiB, 512MiB, bytes): its memory less what others use",
    },
    DEVICE,
    IMPORT,
    { flag: "--json", describe: "print one JSON object" },
  ],
  examples: [
    "grpu plan run.yaml",
    "grpu plan model.name=./Qwen2.5-0.5B model.lora_rank=16 --memory 8GiB",
    "grpu plan run.yaml --memory 6GiB --device webgpu --json",
  ],
  notes:
    "Nothing is allocated and no weight is read: of the model's folder only config.json is needed. With --memory and without --device the plan is for a typical GPU.\n" +
    "The status is 0 where the run fits and 1 where it does not.",
  run: plan,
};

async function plan(input: Input, io: Io): Promise<number> {
  const [{ planRun }, { adviceFor }, { readPlanRequest }, text] = await Promise.all([
    import("../../train/backend/local/plan/plan.ts"),
    import("../../train/backend/local/plan/advice.ts"),
    import("../../train/run/model/plan_request.ts"),
    import("./plan_text.ts"),
  ]);
  const { options } = input;
  const { request, model, budgetSource } = await readPlanRequest(
    {
      args: input.args,
      imports: importsOf(input),
      overrides: deviceOverride(input),
      memory: options.memory === undefined ? undefined : String(options.memory),
      isDeviceNamed: options.device !== undefined,
    },
    io,
  );
  const made = await planRun(request);
  const advice = made.fits ? [] : await adviceFor(request);
  if (options.json) io.out(`${JSON.stringify(text.planJson(made, advice))}\n`);
  else io.out(text.planText(made, { advice, model, device: request.info.description, budgetSource }));
  return made.fits ? EXIT_OK : EXIT_FAILED;
}
