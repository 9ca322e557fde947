#!/usr/bin/env node
/** The command line in a real process. */
import { runProgram } from "./cli/front.ts";
import { processIo } from "./cli/io.ts";
import { PROGRAM } from "./cli/program.ts";

process.exitCode = await runProgram(PROGRAM, process.argv.slice(2), processIo());
