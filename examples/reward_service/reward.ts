/** Full marks for the sum, a part of them for one that is close. */
import { registerReward } from "grpu";

registerReward("close", (response, task) => {
  const given = Number(response.trim());
  if (response.trim() === "" || !Number.isFinite(given)) return 0;
  const off = Math.abs(given - Number(task.metadata.answer));
  return { reward: 1 / (1 + off), is_correct: off === 0, metrics: { off: Math.min(off, 1000) } };
});
