/** What the tests of verl's own code run: tasks, rewards and a game of ours, and the tokens of the stand-in for its servers. */
import type { Tree } from "../../src/train/config/yaml/tree.ts";
import type { Task } from "../../src/train/data/types.ts";
import "../../src/train/task/environments.ts";
import { environments } from "../../src/train/task/registered.ts";
import type { Reward } from "../../src/train/task/rollout.ts";
import { multiTurn } from "../../src/train/task/workflows.ts";
import type { Draw } from "../fixtures/cluster.ts";

export const CHAT =
  "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
export const TASKS: Task[] = Array.from({ length: 20 }, (_, i) => ({
  id: `task-${i}`,
  instruction: i === 7 ? "word ".repeat(200) : `Tell a story of ${i} cats`,
  metadata: { answer: String(i), data_source: "stories", deep: { of: [i] } },
}));

/** Depends on task and reply; throws for one reply in eight. */
export const reward: Reward = (response, { metadata }) => {
  if (response.length % 8 === 5) throw new RangeError(`no ${response.length}`);
  const value = response.length / 64 + Number(metadata.answer);
  return { reward: value, is_correct: value > 6, metrics: { length: response.length } };
};
export const WORDS = ["once", "upon", "a", "time", "there", "was", "little", "girl", "named", "Lily"];
export const REPLIES = Array.from({ length: 1000 }, (_, i) => ({
  text: Array.from({ length: 1 + ((i * 7919) % 13) }, (_, k) => WORDS[(i * 31 + k * k) % 10]).join(" "),
  split: i % 5 === 0 ? "val" : "train",
  task: i % (i % 5 === 0 ? 4 : 20),
}));

export const PLAY = environments.find("guess_digit").play!;
export const game = multiTurn({ name: "guesser", game: (task) => PLAY(task, {}), maxSteps: 3 });
export const GAMES: Task[] = [..."05f"].map((answer) => ({ id: answer, instruction: "?", metadata: { answer } }));

/** The tokens of `FakeServers` in verl_checks.py. */
export const draw: Draw = (prompt_ids, max_tokens) => {
  const count = Math.min(5, max_tokens);
  const sum = prompt_ids.reduce((a, b) => a + b, 0) * 31;
  return {
    token_ids: Array.from({ length: count }, (_, i) => 3 + ((sum + i) % 90)),
    log_probs: Array.from({ length: count }, (_, i) => -0.5 - i / 8),
    stop_reason: count === 5 ? "completed" : "length",
  };
};

export interface Checked {
  readonly configs: readonly { readonly config: Tree; readonly refusal: string | null }[];
  readonly estimators: readonly string[];
  readonly losses: readonly string[];
  readonly data: { readonly rows: readonly unknown[]; readonly first: Record<string, unknown> };
  readonly rewards: readonly (
    | { readonly reward_score: number; readonly reward_extra_info: object }
    | { readonly error: string }
  )[];
  readonly agent: {
    readonly tensors: Readonly<Record<string, readonly (readonly number[])[]>>;
    readonly columns: Readonly<Record<string, readonly string[]>>;
    readonly asked: readonly { readonly sampling_params: object }[];
    readonly keys: readonly string[];
  };
  readonly v1?: { readonly stored: readonly V1Row[]; readonly states: Readonly<Record<string, string>> };
  /** Of `ODD`, then of generation servers that fail. */
  readonly odd: readonly (string | Readonly<Record<string, unknown>>)[];
  readonly refusals: readonly string[];
}

export interface V1Row {
  readonly key: string;
  readonly tag: Readonly<Record<string, unknown>>;
  readonly extra: { readonly reward_extra_info: object };
  readonly prompts: readonly number[];
  readonly responses: readonly number[];
  readonly response_mask: readonly number[];
  readonly rollout_log_probs: readonly number[];
  readonly rm_scores: readonly number[];
}

/** A trajectory as the service sends it. */
const trajectory = (more: object = {}) => ({
  ...{ name: "a", prompt_ids: [1, 2], response_ids: [3, 4], response_mask: [1, 0], response_logprobs: [-1, 0] },
  ...{ reward: 0.5, num_turns: 1, is_correct: true, metrics: {}, ...more },
});

const EMPTY = { response_ids: [], response_mask: [], response_logprobs: null };

/** Trajectories at the edges of what verl takes. */
export const ODD = [
  trajectory(),
  trajectory(EMPTY),
  trajectory({ prompt_ids: Array(65).fill(1) }),
  trajectory({ response_ids: Array(50).fill(3), response_mask: Array(50).fill(1) }),
];
