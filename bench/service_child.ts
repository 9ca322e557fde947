/** The process of a service that `service_bench.ts` loads: it answers each message with its figures. */

import { openService } from "../src/cluster/rewards/service.ts";
import { loopSettings } from "../src/train/loop/settings.ts";
import { exactMatch } from "../src/train/task/rewards.ts";
import { singleTurn } from "../src/train/task/rollout.ts";
import { multiTurn } from "../src/train/task/workflows.ts";
import { CHATML, chatTokenizer } from "../test/fixtures/chat.ts";

/** Sent to the parent once, and then as the answer to each of its messages. */
export interface ChildReport {
  readonly url: string;
  readonly judged: number;
  readonly done: number;
  readonly rssBytes: number;
  readonly heapBytes: number;
  /** Of the process so far. */
  readonly cpuSeconds: number;
}

const [kind, token] = process.argv.slice(2);
const task = { id: "t", instruction: "37+5= ".repeat(80), metadata: { answer: "42" } };
/** Two turns, whatever is said. */
const game = () => {
  let turns = 0;
  return {
    reset: () => task.instruction,
    step: (action: string) => ({ observation: "look again", reward: action.length, done: ++turns === 2 }),
  };
};

const service = await openService({
  tasks: { train: [task], val: [] },
  rollout: kind === "rewards" ? singleTurn("sums", exactMatch) : multiTurn({ name: "game", game, maxSteps: 3 }),
  isSingleTurn: kind === "rewards",
  settings: loopSettings({ data: { max_prompt_length: 8192 } }),
  tokenizer: chatTokenizer(CHATML),
  model: { name: "bench", contextLength: 16_384 },
  token: token!,
});

function report(): ChildReport {
  const { judgements, rollouts } = service.stats();
  const { rss: rssBytes, heapUsed: heapBytes } = process.memoryUsage();
  const { user, system } = process.cpuUsage();
  const { total: judged } = judgements;
  return { url: service.url, judged, done: rollouts.done, rssBytes, heapBytes, cpuSeconds: (user + system) / 1e6 };
}

process.on("message", () => process.send!(report()));
process.on("disconnect", () => process.exit());
process.send!(report());
