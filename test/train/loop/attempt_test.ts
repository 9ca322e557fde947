/** One attempt: the outcomes of a rollout, its judgement, its endings. */
import { describe, expect, onTestFinished, test, vi } from "vitest";
import type { Task } from "../../../src/train/data/types.ts";
import { type AttemptContext, runAttempt } from "../../../src/train/loop/rollout/attempt.ts";
import { DrawQueue } from "../../../src/train/loop/rollout/draw_queue.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../../src/train/loop/settings.ts";
import { Termination } from "../../../src/train/task/rollout.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";
import { type Script, scriptedBackend } from "../../fixtures/scripted.ts";

const TASK: Task = { id: "t", instruction: "the", metadata: { answer: "and" } };
const END = "<|im_end|>";

function attempt(
  it: Partial<Pick<AttemptContext, "rollout" | "evaluate" | "isValidation">> & {
    settings?: Partly<LoopSettings>;
    script?: Script;
    signal?: AbortSignal;
  },
) {
  const backend = scriptedBackend(chatTokenizer(CHATML), it.script ?? (() => `and${END}`));
  const signal = it.signal ?? new AbortController().signal;
  const context: AttemptContext = {
    rollout: () => 1,
    step: 1,
    isValidation: false,
    ...it,
    signal,
    backend,
    settings: loopSettings({ workflow: { raise_on_error: false }, ...it.settings }),
  };
  const environment = { draws: new DrawQueue(backend, signal), rank: 0, context };
  return runAttempt({ task: TASK, task_index: 0, rollout_index: 2 }, environment);
}

describe("listeners of the end", () => {
  test("one that is added while another runs is called once", async () => {
    const called: string[] = [];
    await attempt({
      rollout: (_, policy) => {
        policy.onEnd(async () => {
          called.push("first");
          policy.onEnd(() => void called.push("added"));
          await new Promise((resolve) => setTimeout(resolve));
        });
        policy.onEnd(() => void called.push("second"));
        return 1;
      },
    });
    expect(called.toSorted()).toEqual(["added", "first", "second"]);
  });

  test("one that fails does not keep the end from the others, and fails the attempt", async () => {
    const called: string[] = [];
    const settings = { workflow: { raise_on_error: false, retry_limit: 1 } };
    const rollout: AttemptContext["rollout"] = (_, policy) => {
      policy.onEnd(() => {
        throw new Error("no room");
      });
      policy.onEnd((end) => void called.push("result" in end ? "result" : "error"));
      return 1;
    };
    expect((await attempt({ settings, rollout })).metadata.error).toMatch(/no room/);
    expect(called).toEqual(["result"]);
  });
});

test.each([true, false])("a draw of a validation attempt is not to be trained on (%s)", async (isValidation) => {
  const draw = vi.spyOn(DrawQueue.prototype, "draw");
  onTestFinished(() => draw.mockRestore());
  const rollout: AttemptContext["rollout"] = async (task, policy) => {
    await policy.complete(task.instruction);
    return 1;
  };
  await attempt({ isValidation, rollout });
  expect(draw.mock.calls.map(([{ mayTrain = true }]) => mayTrain)).toEqual([!isValidation]);
});

describe("outcomes", () => {
  test("a number is the reward of everything recorded", async () => {
    const episode = await attempt({
      rollout: async (task, policy) => {
        await policy.complete(task.instruction);
        await policy.agent("helper").complete("x");
        return 0.5;
      },
    });
    expect(episode).toMatchObject({ id: "t:2", is_correct: true, termination_reason: "env_done" });
    expect(episode.trajectories.map(({ name, reward, steps }) => [name, reward, steps.length])).toEqual([
      ["", 0.5, 1],
      ["helper", 0.5, 1],
    ]);
  });

  test("an evaluation adds metrics and signals", async () => {
    const episode = await attempt({
      rollout: async (_, policy) => {
        await policy.complete("x");
        return { reward: 1, is_correct: false, metrics: { m: 2 }, signals: { s: 3 } };
      },
    });
    expect(episode).toMatchObject({
      is_correct: false,
      metrics: { m: 2 },
      trajectories: [{ signals: { s: 3 } }],
    });
  });

  test("a rollout that returns nothing needs an evaluator", async () => {
    const rollout = async () => {};
    expect((await attempt({ rollout })).metadata.error).toMatch(/returned nothing and no evaluator/);
    const judged = await attempt({
      rollout: async (_, policy) => void (await policy.complete("x")),
      evaluate: (task, episode) => ({
        reward: Number(episode.trajectories[0]!.steps[0]!.model_response === task.metadata.answer),
        signals: { length: 3 },
        metrics: { seen: 1 },
      }),
    });
    expect(judged).toMatchObject({ is_correct: true, metrics: { seen: 1 } });
    expect(judged.trajectories[0]).toMatchObject({ reward: 1, signals: { length: 3 } });
  });

  test("an evaluator keeps the rewards of the rollout", async () => {
    const episode = await attempt({
      rollout: async (_, policy) => {
        const [a, b] = [policy.agent("a"), policy.agent("b")];
        await a.complete("x");
        await b.complete("x");
        return {
          trajectories: [a.trajectory(0.25, { signals: { own: 1 } }), { ...b.trajectory(), reward: null }],
        };
      },
      evaluate: () => ({ reward: 7, signals: { own: 2, other: 3 } }),
    });
    expect(episode.trajectories.map(({ reward, signals }) => [reward, signals])).toEqual([
      [0.25, { own: 1, other: 3 }],
      [7, { own: 2, other: 3 }],
    ]);
  });
});

describe("invalid outcomes are refused", () => {
  test.each<[string, unknown, RegExp]>([
    ["a text", "x", /a number, or an object with a number named reward \("x"\)/],
    ["null", null, /named reward \(null\)/],
    ["an empty object", {}, /named reward \(\{\}\)/],
    ["a reward that is a text", { reward: "1" }, /named reward \(\{"reward":"1"\}\)/],
    ["trajectories that are no list", { trajectories: 3 }, /each needs a list of steps \(\{"trajectories":3\}\)/],
    ["a trajectory without steps", { trajectories: [{ reward: 1 }] }, /each needs a list of steps \(\{"reward":1\}\)/],
  ])("%s", async (_, outcome, message) => {
    const episode = await attempt({ rollout: () => outcome as number });
    expect(episode.termination_reason).toBe("error");
    expect(String(episode.metadata.error)).toMatch(message);
  });
});

describe("endings", () => {
  const turns = async (policy: Parameters<AttemptContext["rollout"]>[1]) => {
    await policy.complete("x");
    policy.annotate({ reward: 0.5 });
  };

  test.each([
    ["timeout", 0.3, () => new Promise<number>(() => {})],
    ["max_turns_exceeded", 60, () => Promise.reject(new Termination("max_turns_exceeded"))],
  ])("%s keeps the steps so far and their rewards", async (reason, timeout, end) => {
    const episode = await attempt({
      rollout: async (_, policy) => {
        await turns(policy);
        await turns(policy);
        return end();
      },
      settings: { workflow: { workflow_args: { timeout } } },
    });
    expect(episode.termination_reason).toBe(reason);
    expect(episode.trajectories).toMatchObject([{ reward: 1, steps: [{ reward: 0.5 }, { reward: 0.5 }] }]);
  });

  test("model calls after the deadline are refused and not counted", async () => {
    let late: Promise<unknown> | undefined;
    const episode = await attempt({
      rollout: async (_, policy) => {
        await new Promise((resolve) => setTimeout(resolve, 60));
        late = policy.complete("x").catch((error: Error) => error.name);
        return 1;
      },
      settings: { workflow: { workflow_args: { timeout: 0.02 } } },
    });
    expect(episode).toMatchObject({ termination_reason: "timeout", trajectories: [] });
    await new Promise((resolve) => setTimeout(resolve, 80));
    expect(await late).toBe("Termination");
  });

  test("a prompt that is too long ends the episode, also for an agent that sees only a 400", async () => {
    const episode = await attempt({
      rollout: async (_, policy) => {
        await turns(policy);
        const reply = await policy.fetch(`${policy.baseURL}/completions`, {
          method: "POST",
          body: JSON.stringify({ prompt: "x".repeat(99) }),
        });
        if (!reply.ok) throw new Error(`SDK error ${reply.status}`);
        return 1;
      },
      settings: { data: { max_prompt_length: 50 } },
    });
    expect(episode).toMatchObject({
      termination_reason: "max_prompt_length_exceeded",
      trajectories: [{ reward: 0.5 }],
    });
  });

  test("a rollout that throws is retried with other random numbers, then counted as an error", async () => {
    const seen: number[] = [];
    let tries = 0;
    const episode = await attempt({
      script: (_, { seed }) => {
        seen.push(seed);
        return END;
      },
      rollout: async (_, policy) => {
        await policy.complete("x");
        if (++tries < 3) throw new Error("flaky");
        return 1;
      },
    });
    expect(episode).toMatchObject({
      termination_reason: "env_done",
      trajectories: [{ reward: 1, steps: [{}] }],
    });
    expect(new Set(seen).size).toBe(3);
    const failed = await attempt({ rollout: () => Promise.reject(new Error("never")) });
    expect(failed).toMatchObject({
      termination_reason: "error",
      trajectories: [],
      metadata: { error: /never/ },
    });
  });

  test.each<[string, () => unknown]>([
    ["in a reward", () => 1],
    ["in an error", () => Promise.reject(new Error("bad luck"))],
    ["in nothing that can be judged", () => undefined],
  ])("one that ends %s leaves no timer behind to keep the process", async (_, rollout) => {
    vi.useFakeTimers();
    onTestFinished(() => void vi.useRealTimers());
    await attempt({ rollout: rollout as AttemptContext["rollout"] });
    expect(vi.getTimerCount()).toBe(0);
  });

  test("stopping the run ends the attempt at once", async () => {
    const controller = new AbortController();
    const running = attempt({ rollout: () => new Promise<number>(() => {}), signal: controller.signal });
    setTimeout(() => controller.abort(new Error("stopped")), 5);
    await expect(running).rejects.toThrow("stopped");
  });
});
