/** Some groups of a step, token by token, with rewards and advantages. */

import { TokenText } from "../../../src/chat/live/token_text.ts";
import { advantageReader } from "../../../src/engine/algorithm/advantage/level.ts";
import type { Tokenizer } from "../../../src/engine/contract/text.ts";
import { mergeSteps } from "../../../src/train/data/pack.ts";
import type { Episode, Trajectory } from "../../../src/train/data/types.ts";
import type { AdvantageRows } from "../../../src/train/loop/contract.ts";
import type { AttemptView, GroupView, Passage, TokenOf } from "../protocol.ts";

/** Groups shown of a step, and attempts of a group. */
const MOST_GROUPS = 8;
const MOST_ATTEMPTS = 32;

/** By the uid of a trajectory: its advantage, the mean over its trained tokens. */
export function advantagesOf(rows: AdvantageRows): Map<string, number> {
  const read = advantageReader(rows.advantages);
  const sums = new Map<string, { sum: number; count: number }>();
  for (const [row, trajectory] of rows.trajectoryOfRow.entries()) {
    const { uid } = rows.trajectories[trajectory]!;
    const total = sums.get(uid) ?? { sum: 0, count: 0 };
    sums.set(uid, total);
    for (let t = rows.offsets[row]!; t < rows.offsets[row + 1]!; t++) {
      if (rows.mask[t] === 0) continue;
      total.sum += read(t, row);
      total.count++;
    }
  }
  return new Map(Array.from(sums, ([uid, { sum, count }]) => [uid, count > 0 ? sum / count : 0]));
}

export interface GroupOptions {
  readonly tokenizer: Tokenizer;
  readonly advantages: ReadonlyMap<string, number>;
}

/** The first tasks of a step, each with its attempts; tasks whose attempts differ come first, because they teach. */
export function groupViews(episodes: readonly Episode[], options: GroupOptions): GroupView[] {
  const byTask = new Map<number, Episode[]>();
  for (const episode of episodes) byTask.set(episode.task_index, [...(byTask.get(episode.task_index) ?? []), episode]);
  const differs = (group: readonly Episode[]) => new Set(group.map(rewardOf)).size > 1;
  const groups = [...byTask.values()];
  const chosen = [...groups.filter(differs), ...groups.filter((group) => !differs(group))].slice(0, MOST_GROUPS);
  return chosen.map((group) => ({
    task: group[0]!.task.id,
    prompt: group[0]!.task.instruction,
    attempts: group.slice(0, MOST_ATTEMPTS).map((episode) => attemptView(episode, options)),
  }));
}

function rewardOf({ trajectories }: Episode): number | null {
  const [first] = trajectories;
  return first?.reward ?? first?.steps.at(-1)?.reward ?? null;
}

function attemptView(episode: Episode, { tokenizer, advantages }: GroupOptions): AttemptView {
  const [trajectory] = episode.trajectories;
  const advantage = trajectory && advantages.get(trajectory.uid);
  return {
    reward: rewardOf(episode),
    isCorrect: episode.is_correct,
    passages: trajectory ? passagesOf(trajectory, tokenizer) : [],
    ...(advantage !== undefined && { advantage }),
  };
}

/** The rows that are trained on, cut where sampled tokens begin and end. */
function passagesOf({ steps }: Trajectory, tokenizer: Tokenizer): Passage[] {
  return mergeSteps(steps).flatMap(({ tokens, mask, logprobs }) => {
    const text = new TokenText(tokenizer);
    const passages: { isSampled: boolean; tokens: TokenOf[] }[] = [];
    for (const [t, id] of tokens.entries()) {
      const isSampled = mask[t] === 1;
      if (passages.at(-1)?.isSampled !== isSampled) passages.push({ isSampled, tokens: [] });
      const token = { id, text: text.push(id) };
      passages.at(-1)!.tokens.push(isSampled ? { ...token, logprob: logprobs[t]! } : token);
    }
    return passages;
  });
}
