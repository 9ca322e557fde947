import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RequestSequence } from "../../../src/serve/tinker/train/request_sequence.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function sequence() {
  const [ran, givenUp]: [string[], string[]] = [[], []];
  const requests = new RequestSequence<{ future: { id: string; session: string; state: () => never } }>({
    gapMs: 1000,
    most: 16,
    ready: ({ future }) => ran.push(future.id),
    givenUp: ({ future }, missing) => givenUp.push(`${future.id} for ${missing}`),
  });
  const send = (number: bigint) =>
    requests.submit(number, {
      print: "",
      make: () => ({ future: { id: `${number}`, session: "s", state: () => ({}) as never } }),
    });
  return { requests, send, ran, givenUp };
}

test("the wait for a missing request starts with the first one behind it, whatever comes later", () => {
  const { send, ran, givenUp } = sequence();
  send(1n);
  for (let number = 3n; number < 8n; number++) {
    send(number);
    vi.advanceTimersByTime(300);
  }
  expect(givenUp).toEqual(["3 for 2", "4 for 2", "5 for 2", "6 for 2"]);
  // Behind those given up, counting goes on.
  expect(ran).toEqual(["1", "7"]);
});

test("a request that fills one gap gives the next one its whole time", () => {
  const { requests, send, ran, givenUp } = sequence();
  send(2n);
  send(4n);
  vi.advanceTimersByTime(900);
  send(1n);
  vi.advanceTimersByTime(900);
  expect([ran, givenUp, requests.missing]).toEqual([["1", "2"], [], 3n]);
  vi.advanceTimersByTime(100);
  expect([ran, givenUp, requests.missing]).toEqual([["1", "2"], ["4 for 3"], 5n]);
});

test("a cleared sequence gives nothing up", () => {
  const { requests, send, givenUp } = sequence();
  send(2n);
  expect(requests.clear().map(({ future }) => future.id)).toEqual(["2"]);
  vi.advanceTimersByTime(5000);
  send(3n);
  vi.advanceTimersByTime(999);
  expect(givenUp).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(givenUp).toEqual(["3 for 1"]);
});
