import { registerAgent } from "grpu";
import OpenAI from "openai";

registerAgent("adder", async (task, { baseURL, fetch, model }) => {
  const openai = new OpenAI({ apiKey: "none", baseURL, fetch });
  const messages = [{ role: "user" as const, content: task.instruction }];
  const reply = await openai.chat.completions.create({ model, messages });
  return reply.choices[0]?.message.content === task.metadata.answer ? 1 : 0;
});
