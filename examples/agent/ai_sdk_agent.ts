import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";
import { registerAgent } from "grpu";

registerAgent("adder", async (task, { baseURL, fetch, model }) => {
  const provider = createOpenAICompatible({ name: "policy", baseURL, fetch });
  const { text } = await generateText({ model: provider(model), prompt: task.instruction });
  return text === task.metadata.answer ? 1 : 0;
});
