/** Whether recorded tokens fit the model that trains on them. */
import type { Backend } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { RecordedSampling, ScanFacts } from "./scan.ts";

/** Sampling of the run that trains on traces. */
export interface RecordedCheck {
  /** `rllm.rollout.train`; absent: not compared. */
  readonly sampling?: RecordedSampling;
}

/**
 * Refuses tokens of another vocabulary, and sequences that are too long.
 * @throws {ConfigError} that names the session
 * @returns warnings: about weights, a model of another name, other sampling settings
 */
export function checkRecorded(facts: ScanFacts, backend: Backend, { sampling }: RecordedCheck = {}): string[] {
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
  if (facts.masked > 0)
    warnings.push(
      `In ${facts.masked} of ${facts.calls} calls a mask limited tokens (a form of the reply, or a tool's schema): their log-probs are the model's own, without the mask. Correct for it with rllm.algorithm.rollout_correction, or leave those sessions out.`,
    );
  return [...warnings, ...(sampling ? otherSamplings(facts, sampling) : [])];
}

/** A log-prob is that of its own temperature; what `top_p` and `top_k` cut off is never trained on. */
function otherSamplings({ samplings }: ScanFacts, runSampling: RecordedSampling): string[] {
  return samplings
    .filter((each) => shownSampling(each) !== shownSampling(runSampling))
    .map(
      (each) =>
        `Calls of the traces were sampled with ${shownSampling(each)}, and rllm.rollout.train says ${shownSampling(runSampling)}: their log-probs are of another distribution. Set rllm.rollout.train to the same, or correct for it with rllm.algorithm.rollout_correction.`,
    );
}

/** 0 and -1 both keep all candidates. */
function shownSampling({ temperature, top_p, top_k }: RecordedSampling): string {
  return `temperature=${temperature} top_p=${top_p} top_k=${top_k > 0 ? top_k : -1}`;
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
