/**
 * An agent in a process of its own: guesses a hidden digit, asking the run's gateway with the official OpenAI client.
 *   npm install openai tsx && npx tsx examples/remote_agent/agent.ts 8100
 */
import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import OpenAI from "openai";

const TURNS = 4;
const DIGITS = "0123456789abcdef";

interface Run {
  readonly base_url: string;
  readonly api_key: string;
  readonly model: string;
  readonly task: { readonly metadata: { readonly answer: string } };
}

/** Plays one game: each wrong guess is answered with < or >. The reward is 1 for a game that is won. */
async function attempt({ base_url, api_key, model, task }: Run) {
  const client = new OpenAI({ baseURL: base_url, apiKey: api_key });
  const hidden = task.metadata.answer;
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "?" }];
  for (let turn = 1; turn <= TURNS; turn++) {
    const [choice] = (await client.chat.completions.create({ model, messages })).choices;
    const guess = choice?.message.content ?? "";
    const metrics = { num_turns: turn };
    if (guess === hidden) return { reward: 1, metrics };
    if (choice?.finish_reason === "length")
      return { reward: 0, metrics, termination_reason: "max_response_length_exceeded" };
    const at = guess.length === 1 ? DIGITS.indexOf(guess) : -1;
    const hint = at < 0 ? "?" : DIGITS.indexOf(hidden) < at ? "<" : ">";
    messages.push({ role: "assistant", content: guess }, { role: "user", content: hint });
  }
  return { reward: 0, metrics: { num_turns: TURNS }, termination_reason: "max_turns_exceeded" };
}

createServer(async (request, response) => {
  try {
    response.end(JSON.stringify(await attempt((await json(request)) as Run)));
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
}).listen(Number(process.argv[2]), "127.0.0.1");
