/** `grpu compute ...`: the engine's advantages, losses, KL and rollout correction on a file of rollouts. */
import type { Command } from "../command.ts";
import { advantagesCommand } from "./compute_advantages.ts";
import { correctionCommand } from "./compute_correction.ts";
import { klCommand } from "./compute_kl.ts";
import { lossCommand } from "./compute_loss.ts";

export const computeCommands: readonly Command[] = [advantagesCommand, lossCommand, klCommand, correctionCommand];
