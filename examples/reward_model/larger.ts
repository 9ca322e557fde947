/**
 * What the reward model's score stands for: whether the reply is the larger number. It judges nothing while the model scores; it adds
 * the metric `larger`, and pass@1 in validations counts right replies.
 *
 *     grpu train examples/reward_model/rl.yaml --import examples/reward_model/larger.ts
 */
import { registerEvaluator } from "grpu";

registerEvaluator("larger", (task, { trajectories }) => {
  const reply = trajectories[0]?.steps.at(-1)?.model_response.trim();
  const reward = Number(reply === String(task.metadata.larger));
  return { reward, metrics: { larger: reward } };
});
