/** Whether recorded tokens fit the model that trains on them. */
import type { Backend } from "../../contract/backend.ts";
import { ConfigError } from "../../errors.ts";
import type { ScanFacts } from "./scan.ts";

/**
 * Refuses tokens of another vocabulary, and sequences that are too long.
 * @throws {ConfigError} that names the session
 * @returns warnings: about weights or a model of another name
 */
export function checkRecorded(facts: ScanFacts, backend: Backend): string[] {
  const { vocabSize, contextLength, name } = backend.model;
  const { largestId, longest, models, weightVersions } = facts;
  if (largestId.value >= vocabSize)
    refuse(
      `the token id ${largestId.value} of the session ${largestId.session_id} is not in the model's vocabulary of ${vocabSize}`,
    );
  if (longest.value > contextLength)
    refuse(
      `a call of the session ${longest.session_id} has ${longest.value} tokens, and the model's context is ${contextLength}`,
    );
  checkTokenizer(facts, backend);
  const warnings: string[] = [];
  const others = [...models].filter((each) => each !== "" && each !== name);
  if (others.length > 0)
    warnings.push(`The traces are of ${others.join(", ")}, and this run trains ${name}: their log-probs differ.`);
  if (weightVersions && weightVersions.greatest > backend.weightVersion)
    warnings.push(
      `The traces were sampled by weight versions ${weightVersions.least} to ${weightVersions.greatest}, and this run's weights are at version ${backend.weightVersion}: they are of another run. Correct for it with rllm.algorithm.rollout_correction.`,
    );
  return warnings;
}

/** Replies must decode to the text that was recorded beside them; a stop string or a parser may have cut one. */
function checkTokenizer({ replies }: ScanFacts, { tokenizer, model }: Backend): void {
  if (!tokenizer || replies.length === 0) return;
  const decoded = replies.map(({ ids, text }) => ({ text, found: tokenizer.decode(ids) }));
  if (decoded.some(({ text, found }) => found.includes(text))) return;
  const { text, found } = decoded[0]!;
  refuse(
    `their tokens are of another tokenizer than ${model.name}'s, which decodes ${shown(found)} where ${shown(text)} was recorded`,
  );
}

function shown(text: string): string {
  return JSON.stringify(text.length > 40 ? `${text.slice(0, 40)}...` : text);
}

function refuse(what: string): never {
  throw new ConfigError(`Cannot train on the traces: ${what}. Train the model that they were recorded with.`, {
    kind: "data",
  });
}
