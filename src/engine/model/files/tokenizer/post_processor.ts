/** The special tokens around a text: the post-processors of tokenizer.json. */
import { flattenSteps, type TokenizerStep } from "./json.ts";

export type PostProcessor = (ids: readonly number[]) => number[];

interface TemplateItem {
  readonly SpecialToken?: { readonly id: string };
  readonly Sequence?: { readonly id: string };
}

const POST_PROCESSORS: Readonly<Record<string, (step: TokenizerStep) => PostProcessor>> = {
  ByteLevel: () => (ids) => [...ids],
  TemplateProcessing(step) {
    const tokens = step.special_tokens as Readonly<Record<string, { readonly ids: readonly number[] }>>;
    const items = (step.single as TemplateItem[]).map(({ SpecialToken, Sequence }) => {
      if (Sequence) return undefined;
      const ids = SpecialToken && tokens[SpecialToken.id]?.ids;
      if (!ids) throw new Error(`the template has an unknown token ${JSON.stringify(SpecialToken?.id)}`);
      return ids;
    });
    return (ids) => items.flatMap((item) => item ?? ids);
  },
  BertProcessing: surrounding,
  RobertaProcessing: surrounding,
};

function surrounding(step: TokenizerStep): PostProcessor {
  const [first, last] = [step.cls, step.sep].map((token) => (token as [string, number])[1]);
  return (ids) => [first!, ...ids, last!];
}

/** @throws for an unknown type. */
export function createPostProcessor(json: TokenizerStep | null | undefined): PostProcessor {
  const steps = flattenSteps(json, "processors").map((step) => {
    const create = Object.hasOwn(POST_PROCESSORS, step.type) ? POST_PROCESSORS[step.type] : undefined;
    if (!create) throw new Error(`post-processor ${JSON.stringify(step.type)} is not known`);
    return create(step);
  });
  return (ids) => steps.reduce<number[]>((at, step) => step(at), [...ids]);
}
