/** The latest validation attempts that the service judged, for the run's log of samples. */

import type { EpisodePlace } from "../../../cluster/rewards/service.ts";
import type { Episode } from "../../data/types.ts";

/** More than a validation's samples in the log. */
const MOST = 64;

export class SampledEpisodes {
  private episodes: Episode[] = [];

  add(episode: Episode, { isValidation }: EpisodePlace): void {
    if (isValidation && this.episodes.length < MOST) this.episodes.push(episode);
  }

  /** Those since the last call, in the order of their tasks, so that validations show the same ones. */
  take(): readonly Episode[] {
    const taken = this.episodes.sort((a, b) => a.task_index - b.task_index);
    this.episodes = [];
    return taken;
  }
}
