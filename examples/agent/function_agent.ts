import { registerAgent } from "grpu";

registerAgent("adder", async (task, policy) => {
  const reply = await policy.chat([{ role: "user", content: task.instruction }]);
  return reply.message.content === task.metadata.answer ? 1 : 0;
});
