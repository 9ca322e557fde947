/**
 * Admits the requests that run: those at the head of the queue whose pages are free. A sequence takes all the pages
 * that it may need before it starts, so those that run end without waiting for others, and none waits for ever.
 */
import type { KeyValueCache } from "./key_value_cache.ts";
import type { OfPolicy } from "./mixed_weights.ts";
import { type Need, PagePool, pageNeed } from "./pages.ts";
import { type DrawRequest, type Prompt, type Sequence, startSequence, tokenLimit } from "./sequence.ts";

/** A request that has not started. */
export interface Waiting extends Need {
  readonly request: DrawRequest;
  /** Index of the request. */
  readonly index: number;
  /** Most tokens to draw. */
  readonly limit: number;
}

/** Sequences that start together. */
export interface Admitted {
  readonly sequences: Sequence[];
  /** Those of their prompts that are to be computed. */
  readonly prompts: Prompt[];
}

/** @param policies numbers the policies of a batch: a prompt has other keys and values under each. */
export function waitingRequests(
  requests: readonly DrawRequest[],
  contextLength: number,
  policies: PolicyNumbers = new PolicyNumbers(),
): Waiting[] {
  return requests.map((request, index) => {
    const limit = tokenLimit(request, contextLength);
    const key = `${policies.of(request.policy)}: ${request.prompt_ids.join()}`;
    const need = pageNeed(key, { prompt: request.prompt_ids.length, limit });
    return { request, index, limit, ...need };
  });
}

/** A number for each policy, in the order of their first requests. */
export class PolicyNumbers {
  private readonly numbers = new Map<OfPolicy | undefined, number>();

  of(policy: OfPolicy | undefined): number {
    const number = this.numbers.get(policy) ?? this.numbers.size;
    this.numbers.set(policy, number);
    return number;
  }
}

export class Admission {
  private readonly queue: Waiting[];
  private readonly pool: PagePool;
  private readonly most: number;
  private readonly prompts = new Map<string, Prompt>();
  private running = 0;
  /** Requests so far. */
  count: number;

  constructor(requests: readonly Waiting[], cache: Pick<KeyValueCache, "pages" | "sequences">) {
    this.queue = [...requests].reverse();
    this.count = requests.length;
    this.pool = new PagePool(cache.pages);
    this.most = cache.sequences;
  }

  get waits(): boolean {
    return this.queue.length > 0;
  }

  /** Puts a request behind all others; its index is the next one. */
  add(request: Omit<Waiting, "index">): void {
    this.queue.unshift({ ...request, index: this.count++ });
  }

  /** Starts requests in their order, as many as fit. */
  admit(): Admitted {
    const [sequences, prompts]: [Sequence[], Prompt[]] = [[], []];
    for (let next = this.queue.at(-1); next && this.fits(next); next = this.queue.at(-1)) {
      let prompt = this.prompts.get(next.key);
      if (!prompt) {
        prompt = this.open(next);
        prompts.push(prompt);
      }
      const sequence = startSequence(next, { prompt, ownPages: this.pool.take(next.own) });
      prompt.members.add(sequence);
      sequences.push(sequence);
      this.queue.pop();
      this.running++;
    }
    return { sequences, prompts };
  }

  /** Whether a request could start now. */
  fits(request: Need): boolean {
    return this.fitTogether([request]);
  }

  /** Whether requests could all start now. */
  fitTogether(requests: readonly Need[]): boolean {
    const prompts = new Map(requests.map(({ key, shared }) => [key, this.prompts.has(key) ? 0 : shared]));
    let pages = requests.reduce((sum, { own: ownPages }) => sum + ownPages, 0);
    for (const shared of prompts.values()) pages += shared;
    return this.running + requests.length <= this.most && pages <= this.pool.free;
  }

  private open({ key, request, shared }: Waiting): Prompt {
    const { prompt_ids: ids, policy } = request;
    const prompt = { key, ids, policy, pages: this.pool.take(shared), members: new Set<Sequence>(), computed: 0 };
    this.prompts.set(key, prompt);
    return prompt;
  }

  /** Frees a sequence's pages, and those of its prompt with the last of its sequences. */
  end(sequence: Sequence): void {
    const { prompt } = sequence;
    this.pool.give(sequence.pages.slice(prompt.pages.length));
    this.running--;
    prompt.members.delete(sequence);
    if (prompt.members.size > 0) return;
    this.pool.give(prompt.pages);
    this.prompts.delete(prompt.key);
  }
}
