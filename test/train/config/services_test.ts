/** Agents in other processes and their gateway: two generations of settings, what wins, what is refused. */
import { describe, expect, test } from "vitest";
import { gatewaySettings } from "../../../src/train/run/gateway/gateway_settings.ts";
import { complaints, compose } from "./disk.ts";

const AGENT = "task.agent=http://127.0.0.1:8100/run";
const settings = (...overrides: string[]) => gatewaySettings(compose([AGENT, ...overrides]).config);

describe("effective settings", () => {
  test("the published defaults of the older names", () => {
    expect(settings()).toEqual({
      agents: ["http://127.0.0.1:8100/run"],
      mode: "subprocess",
      host: "127.0.0.1",
      port: 4000,
      adminToken: "my-shared-secret",
      tunnel: undefined,
      store: undefined,
      retention: undefined,
      keys: { name: null, group: null },
    });
  });

  test.each<[string[], object]>([
    [["rllm.sdk.proxy.port=5000", "rllm.sdk.proxy.host=localhost"], { port: 5000, host: "localhost" }],
    [["rllm.gateway.port=5001"], { port: 5001, host: "127.0.0.1" }],
    [["rllm.gateway.port=5001", "rllm.sdk.proxy.port=5001"], { port: 5001 }],
    [["rllm.gateway.port=9090"], { port: 4000 }],
    [["rllm.sdk.store.path=a.db"], { store: "a.db" }],
    [["rllm.gateway.store=sqlite"], { store: expect.stringMatching(/^\/.*\.rllm\/traces\.db$/) }],
    [["rllm.gateway.store=sqlite", "rllm.gateway.db_path=b.db"], { store: "b.db" }],
    [["task.trace_retention={max_age_s: 60, max_bytes: 7}"], { retention: { max_age_s: 60, max_bytes: 7 } }],
    [["task.trace_retention.max_traces=3"], { retention: { max_traces: 3 } }],
    [["rllm.gateway.tunnel=https://t.example/x/", "rllm.sdk.proxy.admin_token=own"], { tunnel: "https://t.example/x" }],
    [["rllm.sdk.processing={traj_name_key: role, groupby_key: part}"], { keys: { name: "role", group: "part" } }],
    [["task.agent=[http://a/run,http://b/run]"], { agents: ["http://a/run", "http://b/run"] }],
  ])("%j", (overrides, expected) => {
    expect(settings(...overrides)).toMatchObject(expected);
  });

  test.each([
    ["all addresses", "rllm.gateway.host=0.0.0.0"],
    ["a tunnel", "rllm.gateway.tunnel=https://t.example"],
  ])("the published token is refused for %s", (_, override) => {
    expect(() => settings(override)).toThrow(/published admin token/);
    expect(settings(override, "rllm.sdk.proxy.admin_token=own").adminToken).toBe("own");
  });
});

describe("refused", () => {
  test.each<[string[], RegExp]>([
    [
      ["rllm.gateway.port=1", "rllm.sdk.proxy.port=2"],
      /gateway\.port=1 and rllm\.sdk\.proxy\.port=2: they are two names/,
    ],
    [["rllm.gateway.host=a", "rllm.sdk.proxy.host=b"], /two names of one setting/],
    [
      ["rllm.gateway.store=sqlite", "rllm.gateway.db_path=a", "rllm.sdk.store.path=b"],
      /db_path="a" and rllm\.sdk\.store\.path="b": they are two names/,
    ],
    [["rllm.gateway.db_path=a"], /rllm\.gateway\.store=memory has no database/],
    [["rllm.gateway.tunnel=cloudflared"], /Cannot use the tunnel "cloudflared": grpu starts no tunnel program/],
    [["rllm.gateway.renderer_family=qwen3"], /the model's own chat template renders every turn/],
    [["task.agent=ftp://a/run"], /Cannot ask the agent "ftp:\/\/a\/run"/],
    [["task.agent=[http://a/run,b]"], /Cannot ask the agent "b"/],
    [["rllm.workflow.use_workflow=true"], /Cannot roll out in two ways: .*rllm\.workflow\.use_workflow=true/],
    [["rllm.agent.name=mine"], /Cannot roll out in two ways: .*rllm\.agent\.name="mine"/],
  ])("%j", (overrides, message) => {
    const found = complaints([AGENT, ...overrides]);
    expect(found).toHaveLength(1);
    expect(found[0]).toMatch(message);
  });

  test("a password in an agent's address is refused, and not shown", () => {
    const [found] = complaints(["task.agent=http://me:hunter2@a/run"]);
    expect(found).toMatch(/Cannot ask the agent/);
    expect(found).not.toContain("hunter2");
  });

  test("without an agent, what only a gateway reads is warned of", () => {
    const warnings = (...overrides: string[]) => compose(overrides).warnings.map(({ message }) => message);
    expect(warnings("rllm.sdk.proxy.port=5000")).toEqual([
      "rllm.sdk.proxy.port has no effect: no gateway starts, because task.agent names no agent in another process.",
    ]);
    expect(warnings("rllm.sdk.store.path=a.db")).toEqual([]);
    const [group, name] = ["rllm.sdk.processing.groupby_key=part", "rllm.sdk.processing.traj_name_key=role"];
    for (const override of [group, name])
      expect(warnings(override)).toEqual([
        expect.stringMatching(/it acts on calls of agents in other processes .* and on recorded/),
      ]);
    expect(warnings(AGENT, group, name)).toEqual([]);
    expect(warnings("rllm.sdk.store.path=a.db", name)).toEqual([]);
    expect(warnings("rllm.sdk.store.path=a.db", group)).toHaveLength(1);
    expect(warnings(AGENT, "rllm.sdk.proxy.port=5000")).toEqual([]);
  });
});
