/** The thread of judges.ts: imports the user's modules and calls what they register. */
import { parentPort, workerData } from "node:worker_threads";
import "../../task/answers/rewards.ts";
import "../../task/environments.ts";
import { environments, evaluators, rewards } from "../../task/registered.ts";
import { type JudgeAnswer, type JudgeCall, type RegisteredJudge, type Request, toThrown } from "./judge_calls.ts";
import { importModules } from "./modules.ts";

const say = (answer: JudgeAnswer) => parentPort?.postMessage(answer);

function functionOf({ kind, name }: RegisteredJudge): (...args: never[]) => unknown {
  if (kind === "evaluator") return evaluators.find(name);
  const reward = kind === "reward" ? rewards.find(name) : environments.find(name).reward;
  if (reward) return reward;
  throw new Error(`The environment ${name} has no reward in the judging thread`);
}

async function answer({ id, judge, args }: JudgeCall): Promise<void> {
  say({ begun: id });
  try {
    say({ ended: id, value: await functionOf(judge)(...(args as never[])) });
  } catch (error) {
    say({ ended: id, failure: toThrown(error) });
  }
}

try {
  await importModules(workerData as readonly string[]);
  parentPort?.on("message", (request: Request) => {
    if ("ping" in request) say({ pong: request.ping });
    else void answer(request.call);
  });
} catch (error) {
  say({ unusable: toThrown(error) });
}
