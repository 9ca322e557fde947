/** Constraints that are given up where their grammar fails in the middle of a reply: what was drawn is not lost for it. */
import type { ConstraintState, TokenConstraint } from "../../engine/contract/backend.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";

/**
 * A constraint, and the one that takes its place in a reply where the grammar of the first leads to too many states, or to a
 * text that cannot go on. The other one is made when it is first needed, and receives the tokens so far.
 * @throws {ConfigError} in the reply: that of the first, where the other one refuses those tokens; that of the other one, where it fails later
 */
export function relaxedTo(other: () => TokenConstraint, first: TokenConstraint): TokenConstraint {
  let made: TokenConstraint | undefined;
  const instead = () => {
    made ??= other();
    return made;
  };
  return { start: () => new RelaxingState(first.start(), instead) };
}

class RelaxingState implements ConstraintState {
  isRelaxed = false;
  private state: ConstraintState;
  private drawn: number[] = [];
  private readonly instead: () => TokenConstraint;

  constructor(state: ConstraintState, instead: () => TokenConstraint) {
    this.state = state;
    this.instead = instead;
  }

  fill(mask: Uint32Array): void {
    this.tried((state) => state.fill(mask));
  }

  advance(token: number): void {
    this.tried((state) => state.advance(token));
    if (!this.isRelaxed) this.drawn.push(token);
  }

  get isFree(): boolean {
    return this.tried((state) => state.isFree === true);
  }

  private tried<T>(run: (state: ConstraintState) => T): T {
    try {
      return run(this.state);
    } catch (error) {
      if (this.isRelaxed || !(error instanceof ConfigError)) throw error;
      this.state = this.restarted(error);
      this.isRelaxed = true;
      this.drawn = [];
      return run(this.state);
    }
  }

  private restarted(error: ConfigError): ConstraintState {
    const state = this.instead().start();
    try {
      for (const token of this.drawn) state.advance(token);
    } catch {
      throw error;
    }
    return state;
  }
}

/** Any token may come. */
export function anyTokens({ vocabSize, eosTokenIds }: Tokenizer): TokenConstraint {
  const count = Math.max(vocabSize, ...eosTokenIds.map((id) => id + 1));
  const state: ConstraintState = {
    isFree: true,
    fill(mask) {
      mask.fill(0);
      mask.fill(-1, 0, count >> 5);
      if (count % 32 > 0 && count >> 5 < mask.length) mask[count >> 5] = 2 ** (count % 32) - 1;
    },
    advance: () => {},
  };
  return { start: () => state };
}
