#!/usr/bin/env node
import { runProgram } from "./cli/front.ts";
/** The command line in a real process. */
import { EXIT_FAILED } from "./cli/process/exit.ts";
import { processIo } from "./cli/process/io.ts";
import { PROGRAM } from "./cli/program.ts";
import { closeJudges } from "./train/run/task/judges.ts";

// Of a process that ends before its command does, because what the command waits for can never come.
process.exitCode = EXIT_FAILED;
const io = processIo();
let hasEnded = false;
process.on("exit", (code) => {
  if (hasEnded || code !== EXIT_FAILED || io.signal.aborted) return;
  io.err("grpu: Cannot finish the command: it waits for a promise that never settles. ");
  io.err("Check whether a module of --import awaits a promise that never settles.\n");
});
// Not awaited here: a module that is thrown out of its evaluation would end the process with a status of the runtime's.
void runProgram(PROGRAM, process.argv.slice(2), io).then((code) => {
  hasEnded = true;
  process.exitCode = code;
  closeJudges();
});
