/**
 * A game of turns with a tool, as a task of your own: a model finds a hidden hexadecimal digit by calling `guess`. The tool
 * answers < or >, and four calls are allowed.
 *
 *     grpu train examples/tool_game/run.yaml --import examples/tool_game/game.ts
 */
import { answerOf, type ChatMessage, registerAgent, registerEnvironment } from "grpu";

const NAME = "guess_by_tool";
const TURNS = 4;
const DIGITS = "0123456789abcdef";
const TOOLS = [
  {
    type: "function",
    function: {
      name: "guess",
      description: "Compares a digit with the hidden one.",
      parameters: { type: "object", properties: { digit: { type: "string" } }, required: ["digit"] },
    },
  },
];

registerEnvironment({
  name: NAME,
  describe: "find a hidden hexadecimal digit: each call of the tool is answered with < or >",
  train_files: "examples/multi_turn/guess_digit.jsonl",
  val_files: "examples/multi_turn/guess_digit.jsonl",
  args: [],
  examples: (task) =>
    Array.from({ length: 32 }, (_, i) => ({
      messages: workedGame(DIGITS.indexOf(answerOf(task)), i),
      tools: TOOLS,
    })),
});

/** The agent in this process; examples/remote_agent/tool_agent.py plays the same game in another one. */
registerAgent(NAME, async (task, policy) => {
  const hidden = answerOf(task);
  const messages: ChatMessage[] = [{ role: "user", content: "?" }];
  const ended = (reward: number) => ({ reward, metrics: { num_turns: policy.steps.length } });
  for (let turn = 0; turn < TURNS; turn++) {
    const { message } = await policy.chat(messages, { tools: TOOLS });
    const [call] = message.tool_calls ?? [];
    if (!call) return ended(0);
    const { digit } = JSON.parse(String(call.function.arguments)) as { digit?: unknown };
    if (digit === hidden) return ended(1);
    messages.push(message, { role: "tool", tool_call_id: call.id!, content: hint(String(digit), hidden) });
  }
  return ended(0);
});

/** `?` for a guess that is not a digit. */
function hint(guess: string, hidden: string): string {
  const at = guess.length === 1 ? DIGITS.indexOf(guess) : -1;
  if (at < 0) return "?";
  return DIGITS.indexOf(hidden) < at ? "<" : ">";
}

/** The game of a pupil. One in three uses the answers of the tool; the others guess at random. */
function workedGame(hidden: number, index: number): ChatMessage[] {
  const random = randomOf(1 + hidden * 32 + index);
  const messages: ChatMessage[] = [{ role: "user", content: "?" }];
  let [low, high] = [0, DIGITS.length - 1];
  for (let turn = 0; turn < TURNS; turn++) {
    const at = low + Math.floor(random() * (high - low + 1));
    const call = { function: { name: "guess", arguments: { digit: DIGITS[at] } } };
    messages.push({ role: "assistant", content: "", tool_calls: [call] });
    if (at === hidden) break;
    messages.push({ role: "tool", content: hint(DIGITS[at]!, DIGITS[hidden]!) });
    if (index % 3 > 0) continue;
    if (at < hidden) low = at + 1;
    else high = at - 1;
  }
  return messages;
}

/** Lehmer's generator: pupils play the same games in each run. */
function randomOf(seed: number): () => number {
  let state = (seed * 1_664_525) % 2_147_483_647;
  return () => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
}
