/** How long a Trinity run is. Explorer and trainer count their steps apart, and the trainer's last one needs the explorer's rollouts. */
import type { Problem } from "../../train/config/problem.ts";
import { getAt, type Tree, type YamlValue } from "../../train/config/yaml/tree.ts";

type Read = (path: string) => YamlValue | undefined;

const EXPLORES = "buffer.total_steps";
const TRAINS = "trainer.total_steps";

/** Trinity's exploration steps: verl's steps are `sync_interval` of them. An epoch leaves out a batch that is not full, as in verl. */
export function stepsOf(tasks: number, read: Read): number {
  const number = (path: string) => Number(read(path) ?? 0);
  const batch = number("data.train_batch_size");
  const mini = number("actor_rollout_ref.actor.ppo_mini_batch_size") || batch;
  const interval = Math.max(1, Math.floor(batch / Math.min(mini, batch)));
  const total = number("trainer.total_training_steps");
  const steps = total > 0 ? total : Math.floor(tasks / batch) * number("trainer.total_epochs");
  return steps * interval;
}

/** Both lengths. One that the section `trinity` sets alone holds for the other as well. */
export function lengths(section: ReadonlyMap<string, YamlValue>, computed: number): [string, YamlValue][] {
  const [explores, trains] = [section.get(EXPLORES), section.get(TRAINS)];
  return [
    [EXPLORES, explores ?? trains ?? computed],
    [TRAINS, trains ?? explores ?? computed],
  ];
}

interface Lengths {
  readonly section: ReadonlyMap<string, YamlValue>;
  /** A setting of Trinity's configuration. */
  readonly out: Read;
}

/** Lengths without an end, and a trainer that waits for rollouts that nobody makes. */
export function lengthProblems({ section, out }: Lengths): Problem[] {
  const error = (path: string, message: string): Problem[] => [
    {
      severity: "error",
      path: `trinity.${path}`,
      message: `Cannot set trinity.${path}=${section.has(path) ? section.get(path) : out(path)}: ${message}`,
    },
  ];
  const endless = [EXPLORES, TRAINS].find((path) => section.get(path) === null);
  if (endless) return error(endless, "a run here has an end. Give the number of steps, or remove it.");
  const [makes, takes, repeats] = ["buffer.batch_size", "buffer.train_batch_size", "algorithm.repeat_times"].map(
    (path) => Number(out(path) ?? 1),
  ) as [number, number, number];
  const waitsFor = Math.ceil(makes * (1 - Number(out("explorer.over_rollout.ratio") ?? 0)));
  const rollouts = Number(out(EXPLORES)) * waitsFor * repeats;
  const needed = Number(out(TRAINS)) * (takes || makes * repeats);
  if (!joinsBoth({ section, out }) || rollouts >= needed) return [];
  const message = `its steps train on ${needed} rollouts, and trinity.${EXPLORES}=${out(EXPLORES)} makes ${waitsFor < makes ? "at least " : ""}${rollouts}. Raise that or lower this.`;
  return error(TRAINS, message);
}

/** Whether every row of the trainer is a rollout of this run's explorer. */
function joinsBoth({ section, out }: Lengths): boolean {
  const isPlain = (out("algorithm.sample_strategy") ?? "default") === "default";
  return isPlain && !section.has("algorithm.algorithm_type") && ["both", "colocate"].includes(String(out("mode")));
}

/** The steps of a whole configuration, for people. */
export function stepsText(tree: Tree): string {
  const at = (path: string) => getAt(tree, path);
  const [explores, trains] = [at(EXPLORES), at(TRAINS)];
  if (at("mode") === "bench") return "steps: none, checkpoints are evaluated";
  if (at("mode") === "train") return `steps: ${trains} of ${at("buffer.train_batch_size")} rollouts`;
  const training = at("mode") !== "explore" && trains !== explores ? `, ${trains} of training` : "";
  return `steps: ${explores} of ${at("buffer.batch_size")} tasks${training}`;
}
