/**
 * Short runs with stored metrics: they show any change that moves a number in the loop. Those on a GPU, and long ones, are in
 * long_runs_test.ts. `UPDATE_GOLDEN=1 npx vitest run test/golden` stores the metrics of the `cpu` device, and with SLOW=1 those
 * of the long runs; give the reason in the commit.
 */
import { test } from "vitest";
import { checkRun } from "./check.ts";
import { LONG_RUNS, RUNS } from "./runs.ts";

test.each(Object.keys(RUNS).filter((name) => !LONG_RUNS.has(name)))("%s gives the stored metrics on cpu", (name) =>
  checkRun(name, "cpu"),
);
