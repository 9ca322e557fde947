/** What the page knows of a run, from the news of its worker. */
import { expect, test } from "vitest";
import { Boundary } from "../../../page/train/engine/boundary.ts";
import { RunView } from "../../../page/train/run_view.ts";

const [RATE, GROUP] = ["training.learning_rate", "rllm.rollout.n"] as const;

/** A run with a group size of the address, that trains. */
function training(): RunView {
  const view = new RunView("Run 1");
  view.take({ type: "described", values: { [RATE]: "0.0015", [GROUP]: "4" }, choices: {} });
  view.take({ type: "opened", kind: "cpu", description: "", parameters: 1, trainable: 1 });
  view.accepted = { [GROUP]: "4" };
  return view;
}

test("a change names the step that takes it, and the values before and after", () => {
  const view = training();
  const given = { [GROUP]: "3", [RATE]: "1e-3" };
  view.take({ type: "changed", given, values: { [RATE]: "0.001", [GROUP]: "3" }, fromStep: 2 });
  expect(view.changes).toEqual([{ fromStep: 2, text: "learning rate 0.0015 → 0.001, group size 4 → 3" }]);
  expect(view.accepted).toEqual(given);
});

test("a setting that is cleared has the recipe's value again", () => {
  const view = training();
  view.take({ type: "changed", given: {}, values: { [RATE]: "0.0015", [GROUP]: "8" }, fromStep: 5 });
  expect(view.changes).toEqual([{ fromStep: 5, text: "group size 4 → 8" }]);
  expect(view.values[GROUP]).toBe("8");
});

test("a change to the value that holds is none", () => {
  const view = training();
  view.take({ type: "changed", given: {}, values: view.values, fromStep: 5 });
  expect(view.changes).toEqual([]);
});

test("a held run says that it stands once its step has ended, and goes on when released", async () => {
  const held: string[] = [];
  const boundary = new Boundary(() => held.push("held"));
  boundary.begin();
  boundary.hold();
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect(held).toEqual([]);
  const ended = boundary.here().then(() => held.push("on"));
  await expect.poll(() => held).toEqual(["held"]);
  boundary.release();
  await ended;
  expect(held).toEqual(["held", "on"]);
  await boundary.here();
  expect(held).toHaveLength(2);
});
