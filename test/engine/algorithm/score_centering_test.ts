/** Score centering against PyTorch's figures, and the properties that it is published for. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { scoreCentering } from "../../../src/engine/algorithm/loss/score_centering.ts";

interface Case {
  readonly logits: readonly number[];
  readonly sampler: readonly number[];
  readonly top: readonly number[];
  readonly token: number;
  readonly advantage: number;
  readonly klCoeff: number;
  readonly loss: number;
  readonly gradient: readonly number[];
}

const CASES: Readonly<Record<string, Case>> = JSON.parse(
  readFileSync(new URL("../../fixtures/tinker_losses/score_centering.json", import.meta.url), "utf8"),
);

function logSoftmax(logits: readonly number[]): number[] {
  const max = Math.max(...logits);
  const total = Math.log(logits.reduce((sum, x) => sum + Math.exp(x - max), 0));
  return logits.map((x) => x - max - total);
}

type Given = Pick<Case, "logits" | "sampler" | "top" | "token" | "advantage" | "klCoeff">;

/** The loss, and its gradient by every logit. */
function centred({ logits, sampler, top, token, advantage, klCoeff }: Given) {
  const logprobs = logSoftmax(logits);
  const slopes = new Float64Array(top.length);
  const policy = top.map((v) => logprobs[v]!);
  const loss = scoreCentering({ logprob: logprobs[token]!, advantage, klCoeff, sampler, policy }, slopes);
  const gradient = logits.map(() => 0);
  const add = (v: number, slope: number) => {
    for (const [w, logprob] of logprobs.entries()) gradient[w]! += slope * ((w === v ? 1 : 0) - Math.exp(logprob));
  };
  add(token, -advantage);
  for (const [i, v] of top.entries()) add(v, slopes[i]!);
  return { loss, gradient };
}

/** The expected gradient where the sampler draws every token by its own probability. */
function expected(
  given: Omit<Given, "token" | "advantage">,
  of: { q: readonly number[]; advantages: readonly number[] },
) {
  const sum = given.logits.map(() => 0);
  for (const [token, logprob] of of.q.entries()) {
    const { gradient } = centred({ ...given, token, advantage: of.advantages[token]! });
    for (const [v, slope] of gradient.entries()) sum[v]! += Math.exp(logprob) * slope;
  }
  return sum;
}

const LOGITS = [0.3, -1.2, 2, 0.4, -0.5];
const OTHER = [1.3, 0.2, -0.7, 0.1, 1.1];
const ALL = [0, 1, 2, 3, 4];
const largest = (values: readonly number[]) => Math.max(...values.map(Math.abs));

describe("the loss and its gradient by the logits are PyTorch's", () => {
  test.each(Object.entries(CASES))("%s", (_, given) => {
    const { loss, gradient } = centred(given);
    expect(Math.abs(loss - given.loss)).toBeLessThan(1e-9 * Math.max(1, Math.abs(given.loss)));
    expect(largest(gradient.map((slope, v) => slope - given.gradient[v]!))).toBeLessThan(1e-8);
  });
});

test("on policy the expected gradient is that of REINFORCE", () => {
  const q = logSoftmax(LOGITS);
  const advantages = [1, -2, 0.5, 3, -1];
  const given = { logits: LOGITS, sampler: q, top: ALL, klCoeff: 0 };
  const p = q.map(Math.exp);
  const mean = p.reduce((sum, probability, v) => sum + probability * advantages[v]!, 0);
  const reinforce = p.map((probability, v) => -probability * (advantages[v]! - mean));
  const found = expected(given, { q, advantages });
  expect(largest(found.map((slope, v) => slope - reinforce[v]!))).toBeLessThan(1e-12);
});

test("a constant advantage moves nothing in expectation, off policy and for few recorded tokens whose tail has the policy's shape", () => {
  const q = logSoftmax(OTHER);
  const constant = { q, advantages: ALL.map(() => 5) };
  const full = expected({ logits: LOGITS, sampler: q, top: ALL, klCoeff: 0 }, constant);
  expect(largest(full)).toBeLessThan(1e-12);

  // Without the centring it would: E[A score] is A (q - p).
  const p = logSoftmax(LOGITS).map(Math.exp);
  expect(largest(p.map((probability, v) => 5 * (probability - Math.exp(q[v]!))))).toBeGreaterThan(1);

  const top = [4, 1];
  const tail = ALL.filter((v) => !top.includes(v));
  const [qTail, pTail] = [0.4, tail.reduce((sum, v) => sum + p[v]!, 0)];
  const few = ALL.map((v) => Math.log(top.includes(v) ? 0.3 : (qTail * p[v]!) / pTail));
  const given = { logits: LOGITS, sampler: top.map((v) => few[v]!), top, klCoeff: 0 };
  expect(largest(expected(given, { q: few, advantages: constant.advantages }))).toBeLessThan(1e-12);
});

test("no ratio of probabilities scales the gradient: a token that the policy has all but given up pulls as any other", () => {
  const at = (logit: number) =>
    centred({ logits: [logit, 0], sampler: [Math.log(0.5)], top: [0], token: 0, advantage: 1, klCoeff: 0 });
  // p(a) from 1e-2 to 1e-13, where a ratio p / q would have fallen with it.
  for (const logit of [-5, -30]) expect(at(logit).gradient[0]).toBeCloseTo(-0.5, 2);
});

test("the penalty is zero where the policies agree, and pulls towards the sampler where they differ", () => {
  const q = logSoftmax(OTHER);
  const top = [0, 4];
  const penalty = (logits: readonly number[]) =>
    centred({ logits, sampler: top.map((v) => q[v]!), top, token: 0, advantage: 0, klCoeff: 1 });
  expect(penalty(OTHER).loss).toBeCloseTo(0, 12);
  expect(largest(penalty(OTHER).gradient)).toBeLessThan(1e-12);
  const { loss, gradient } = penalty(LOGITS);
  expect(loss).toBeGreaterThan(0.1);
  const nearer = LOGITS.map((x, v) => x - 0.1 * gradient[v]!);
  expect(penalty(nearer).loss).toBeLessThan(loss);
});

test("a token that the policy excludes makes the loss infinite, and one that both exclude does not", () => {
  const slopes = new Float64Array(2);
  const token = { logprob: 0, advantage: 1, klCoeff: 0 };
  const never = Number.NEGATIVE_INFINITY;
  expect(Number.isFinite(scoreCentering({ ...token, sampler: [Math.log(0.5), 0], policy: [never, 0] }, slopes))).toBe(
    false,
  );
  expect(scoreCentering({ ...token, klCoeff: 1, sampler: [0, never], policy: [0, never] }, slopes)).toBe(0);
});
