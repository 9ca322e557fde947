/**
 * A reward for JSON by a schema: each field of the answer that the reply has right is an equal share. A reply that is the JSON object and
 * nothing else has all of its shares, one with words or a fence around the object half of them, and fields that were not asked for cost
 * a share each.
 *
 *     grpu train examples/json_smollm/run.yaml --import examples/json_smollm/reward.ts
 */
import { answerOf, type RewardFunction, registerReward } from "grpu";

type Fields = Record<string, unknown>;

function objectOf(text: string): Fields | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : undefined;
  } catch {
    return undefined;
  }
}

const jsonFields: RewardFunction = (response, task) => {
  const wanted = Object.entries(objectOf(answerOf(task))!);
  const whole = objectOf(response);
  const found = whole ?? objectOf(response.slice(response.indexOf("{"), response.indexOf("}") + 1)) ?? {};
  const isRight = ([key, value]: [string, unknown]) => JSON.stringify(found[key]) === JSON.stringify(value);
  const right = wanted.filter(isRight).length;
  const others = Object.keys(found).filter((key) => !wanted.some(([name]) => name === key)).length;
  const share = Math.max(0, right - others) / wanted.length;
  return {
    reward: whole ? share : share / 2,
    is_correct: whole !== undefined && share === 1,
    metrics: { is_json: Number(whole !== undefined), fields: right / wanted.length },
  };
};

// Rows whose answer is no JSON object are an error before the first step.
const needsAnswer = (answer: string) => objectOf(answer) !== undefined;

registerReward("json_fields", Object.assign(jsonFields, { needsAnswer }));
