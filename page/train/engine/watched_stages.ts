/** The eight stages of a step, with the news of which one runs; keeps the advantages of the step under way. */
import type { StageContext, Stages } from "../../../src/train/loop/contract.ts";
import { STAGES } from "../../../src/train/loop/stages.ts";
import type { Post, StageName } from "../protocol.ts";
import { advantagesOf } from "./rollouts.ts";

export class WatchedStages {
  /** By the uid of a trajectory, of the last step. */
  advantages: ReadonlyMap<string, number> = new Map();
  private readonly post: Post;

  constructor(post: Post) {
    this.post = post;
  }

  stages(): Stages {
    const say = (stage: StageName, { isValidation, step }: StageContext) => {
      if (!isValidation) this.post({ type: "stage", stage, step });
    };
    const watched = Object.keys(STAGES).map((name) => {
      const stage = name as StageName;
      const run = STAGES[stage] as (input: unknown, context: StageContext) => unknown;
      const saying = (input: unknown, context: StageContext) => {
        say(stage, context);
        return run(input, context);
      };
      return [stage, saying] as const;
    });
    const all = Object.fromEntries(watched) as unknown as Stages;
    const advantages: Stages["advantages"] = async (rows, context) => {
      const result = await all.advantages(rows, context);
      this.advantages = advantagesOf(result.value);
      return result;
    };
    return { ...all, advantages };
  }
}
