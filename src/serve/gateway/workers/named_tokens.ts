/** The texts of the tokens that a worker named in its log-probs, where the gateway has no tokenizer. */
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";

interface Named {
  readonly text: string;
  readonly bytes: Uint8Array | undefined;
}

/** Decodes what was sampled, and nothing else. It lives as long as one call. */
export class NamedTokens implements Tokenizer {
  readonly eosTokenIds = [];
  private readonly named = new Map<number, Named>();

  get vocabSize(): number {
    return this.named.size;
  }

  /** Takes an answer of chat completions, or a chunk of one. */
  learn(event: JsonBody): void {
    for (const { token_ids, logprobs } of (event.choices ?? []) as JsonBody[]) {
      const content = (logprobs as JsonBody | null | undefined)?.content;
      if (!Array.isArray(token_ids) || !Array.isArray(content)) continue;
      content.forEach(({ token, bytes }: JsonBody, i) => {
        if (typeof token !== "string" || typeof token_ids[i] !== "number") return;
        this.named.set(token_ids[i], { text: token, bytes: Array.isArray(bytes) ? Uint8Array.from(bytes) : undefined });
      });
    }
  }

  decode(ids: readonly number[]): string {
    return ids.map((id) => this.named.get(id)?.text ?? "").join("");
  }

  readonly tokenBytes = (id: number): Uint8Array | undefined => this.named.get(id)?.bytes;

  encode(): never {
    throw new Error("Cannot encode a text: the worker has the tokenizer.");
  }
}
