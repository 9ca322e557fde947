/** The settings and the fields of a message that say which turns of a conversation are trained on. */

/** The turns of a conversation that are trained on where no message says so itself. Names as in Tinker's cookbook. */
export const TRAIN_ON_WHAT = ["all_assistant_messages", "last_assistant_message"] as const;
/** One of {@link TRAIN_ON_WHAT}. */
export type TrainOnWhat = (typeof TRAIN_ON_WHAT)[number];

/** Fields of a message that weigh its turn: OpenAI's `weight`, axolotl's `train`, the cookbook's `trainable`. */
export const TURN_WEIGHTS = ["weight", "train", "trainable"] as const;
