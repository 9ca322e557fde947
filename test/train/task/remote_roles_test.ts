/** Which trajectory of a session a call belongs to. */
import { describe, expect, test } from "vitest";
import { rolesOf } from "../../../src/train/task/remote/roles.ts";
import type { Policy } from "../../../src/train/task/rollout.ts";

function opened(keys: { name: string | null; group: string | null } = { name: "agent", group: "group" }) {
  const asked: [string, string][] = [];
  const made: string[] = [];
  const agent = (name: string) => {
    made.push(name);
    const steps: string[] = [];
    const call = (kind: string) => async () => {
      asked.push([name, kind]);
      steps.push(kind);
      return [];
    };
    return {
      steps,
      engine: { chat: call("chat"), complete: call("complete") },
      trajectory: () => ({ name, steps, reward: 0 }),
    };
  };
  const policy = { model: "m", tokenizer: "t", agent } as unknown as Policy;
  const roles = rolesOf(policy, { name: "task", keys: keys as never });
  const send = (kind: "chat" | "complete", metadata?: object) => roles.engine[kind]({ metadata } as never);
  return { roles, send, asked, made };
}

describe("calls of a session", () => {
  test("go to one agent per name and group, however they are made", async () => {
    const { roles, send, asked, made } = opened();
    await send("chat", { agent: "solver" });
    await send("complete", { agent: "solver" });
    await send("chat", { agent: "solver", group: 2 });
    await send("complete");
    expect(asked).toEqual([
      ["solver", "chat"],
      ["solver", "complete"],
      ["solver", "chat"],
      ["task", "complete"],
    ]);
    expect(made).toEqual(["solver", "solver", "task"]);
    expect(roles.trajectories().map(({ label, name, steps }) => [label, name, steps.length])).toEqual([
      ["solver", "solver", 2],
      ["solver/2", "solver", 1],
      ["task", "task", 1],
    ]);
    expect(roles.engine).toMatchObject({ model: "m", tokenizer: "t" });
  });

  test("that fail leave no trajectory", async () => {
    const { roles, send } = opened();
    const broken = rolesOf(
      { agent: () => ({ steps: [], engine: { chat: () => Promise.reject(new Error("x")) } }) } as unknown as Policy,
      { name: "task", keys: { name: null, group: null } as never },
    );
    await expect(broken.engine.chat({} as never)).rejects.toThrow("x");
    expect(broken.trajectories()).toEqual([]);
    await send("chat", { trajectory_name: "header" });
    expect(roles.trajectories().map(({ label }) => label)).toEqual(["header"]);
  });

  test("with null for a name or a group name neither", async () => {
    const { roles, send } = opened();
    await send("chat", { agent: null, group: null });
    expect(roles.trajectories().map(({ label }) => label)).toEqual(["task"]);
  });

  test.each([[""], [{}], [true]])("whose name is %j are refused, with the parameter", async (agent) => {
    await expect(opened().send("chat", { agent })).rejects.toMatchObject({ param: "metadata.agent" });
  });

  test("after the session's end are refused", async () => {
    const { roles, send } = opened();
    roles.close();
    await expect(send("chat")).rejects.toMatchObject({ status: 410, code: "session_ended" });
  });
});
