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

/** `stage` is the body of run_stage; the log is that of an earlier run. */
function drive(stage: string): { status: number | null; stdout: string; stderr: string } {
  const files = {
    "trinity/__init__.py": "",
    "trinity/cli/__init__.py": "",
    "trinity/common/__init__.py": "",
    "trinity/cli/launcher.py": `from types import SimpleNamespace as N\ndef log(text):\n    open("log/trainer.log", "a").write(text)\ndef run_stage(config):\n    ${stage}\n`,
    "trinity/common/config.py":
      'from types import SimpleNamespace as N\ndef load_config(path):\n    return N(check_and_update=lambda: None, buffer=N(total_steps=3), mode="both", checkpoint_job_dir="/c", log=N(save_dir="log"))\n',
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

test.skipIf(!hasPython).each<[what: string, stage: string, status: number, says: string]>([
  ["a run that ends well", "return N(success=True)", 0, ""],
  [
    "a stage that fails",
    'return N(success=False, stage="both", error=N(type_name="E", message="a\\nKeyError: its last line"))',
    1,
    "RuntimeError: Trinity's stage both failed: KeyError: its last line",
  ],
  [
    "an error that the trainer caught",
    `log("${CAUGHT}"); return N(success=True)`,
    1,
    "RuntimeError: Trinity stopped before its end. Error in Trainer: ValueError: no such loss",
  ],
])("%s", (_, stage, status, says) => {
  const found = drive(stage);
  expect(found.stderr).toContain(says);
  expect([found.status, found.stdout]).toEqual([
    status,
    "Total training steps: 3\nTrinity runs in mode both, with checkpoints in /c\n",
  ]);
});
