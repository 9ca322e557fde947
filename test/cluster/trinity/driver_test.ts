/** The driver with stand-ins for Trinity's two modules: a stage that fails, and errors that Trinity only logs, end it with 1. */
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { temporaryFolder } from "../../fixtures/folder.ts";

const DRIVER = fileURLToPath(new URL("../../../config/ray/trinity_driver.py", import.meta.url));
const hasPython = spawnSync("python3", ["-c", ""]).status === 0;
const dir = temporaryFolder("trinity-driver");

/** `stage` is the body of run_stage; the log and the states are those of an earlier run. */
function drive(stage: string, mode = "both"): { status: number | null; stdout: string; stderr: string } {
  const files = {
    "trinity/__init__.py": "",
    "trinity/cli/__init__.py": "",
    "trinity/common/__init__.py": "",
    "trinity/cli/launcher.py": `from types import SimpleNamespace as N\ndef log(text):\n    open("log/trainer.log", "a").write(text)\ndef saved(step, role="trainer"):\n    open(f"checkpoints/{role}_meta.json", "w").write('{"latest_iteration": %d}' % step)\ndef run_stage(config):\n    ${stage}\n`,
    "trinity/common/config.py":
      'from types import SimpleNamespace as N\ndef load_config(path):\n    return N(check_and_update=lambda: None, buffer=N(total_steps=3), trainer=N(name="trainer", total_steps=3), explorer=N(name="explorer"), mode=open("mode").read(), checkpoint_job_dir="checkpoints", log=N(save_dir="log"))\n',
    mode,
    "checkpoints/trainer_meta.json": '{"latest_iteration": 1}',
    "checkpoints/explorer_meta.json": '{"latest_iteration": 1}',
    "log/trainer.log":
      "ERROR 11-23 04:05:06 [trainer.py:160] Error in Trainer:\nERROR 11-23 04:05:06 [trainer.py:160] ValueError: of the run before\n",
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(dir, name, ".."), { recursive: true });
    writeFileSync(join(dir, name), text);
  }
  return spawnSync("python3", [DRIVER, "trinity.yaml"], {
    cwd: dir,
    encoding: "utf8",
    env: { ...process.env, PYTHONPATH: dir },
  });
}

const AT = "ERROR 11-23 04:05:06 [trainer.py:160] ";
const CAUGHT = `${AT}Error in Trainer:\\r\\n${AT}Traceback (most recent call last):\\r\\n${AT}  File 'x.py'\\r\\n${AT}ValueError: no such loss\\r\\n`;

const ENDS = "return N(success=True)";
const begin = (mode: string, total: number) =>
  `Total training steps: ${total}\nTrinity runs in mode ${mode}, with checkpoints in checkpoints\n`;

test.skipIf(!hasPython).each<[what: string, stage: string, status: number, says: string]>([
  ["a run that ends well", `saved(3); ${ENDS}`, 0, ""],
  [
    "a stage that fails",
    'return N(success=False, stage="both", error=N(type_name="E", message="a\\nKeyError: its last line"))',
    1,
    "RuntimeError: Trinity's stage both failed: KeyError: its last line",
  ],
  [
    "an error that the trainer caught",
    `log("${CAUGHT}"); saved(3); ${ENDS}`,
    1,
    "RuntimeError: Trinity stopped before its end. Error in Trainer: ValueError: no such loss",
  ],
  [
    "a trainer that lacked rollouts",
    `log("INFO 11-23 04:05:06 [trainer.py:153] No more samples to train. Stopping training.\\n"); saved(2); ${ENDS}`,
    1,
    "RuntimeError: Trinity stopped without an error, and the newest saved step is 2 of 3.",
  ],
  [
    "a trainer that was shut down before it saved",
    ENDS,
    1,
    "run the same command with trinity.buffer.total_steps=5 trinity.trainer.total_steps=3.",
  ],
])("%s", (_, stage, status, says) => {
  const found = drive(stage);
  expect(found.stderr).toContain(says);
  const end = status === 0 ? "Trinity reached step 3\n" : "";
  expect([found.status, found.stdout]).toEqual([status, begin("both", 3) + end]);
});

test.skipIf(!hasPython).each<[mode: string, stage: string, total: number, says: string]>([
  ["bench", ENDS, 0, ""],
  ["explore", `saved(3, "explorer"); ${ENDS}`, 3, ""],
  ["explore", `saved(3); ${ENDS}`, 3, "the newest saved step is 1 of 3.\n"],
  ["train", `saved(3); ${ENDS}`, 3, ""],
  ["train", `saved(2); ${ENDS}`, 3, "the newest saved step is 2 of 3.\n"],
])("mode %s counts its own steps: %s", (mode, stage, total, says) => {
  const found = drive(stage, mode);
  expect(found.stderr).toContain(says);
  expect([found.status, found.stdout.startsWith(begin(mode, total))]).toEqual([says === "" ? 0 : 1, true]);
});
