/** docs/tinker-sdk.md against the SDK's own source, as test/fixtures/tinker_sdk/methods.py reads it, and against the server. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { openServer, type TestServer } from "./tinker_client.ts";

const read = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");
const { sdk, methods } = JSON.parse(read("../../fixtures/tinker_sdk/methods.json")) as {
  sdk: string;
  methods: string[];
};
const PAGE = read("../../../docs/tinker-sdk.md");

const ROWS = [...PAGE.matchAll(/^\| `([A-Z]\w+\.\w+)` \| (\w+) \| ([^|]*)\| ([^|]*)\|$/gm)].map(
  ([, method, answer, routes, notes]) => ({
    method: method!,
    answer: answer!,
    routes: [...routes!.matchAll(/`([A-Z]+) ([\w/]+)`/g)].map(([, verb, path]) => ({ verb: verb!, path: path! })),
    notes: notes!.trim(),
  }),
);

/** The server's answer to an empty request. */
function ask(server: TestServer, { verb, path }: { verb: string; path: string }) {
  const place = path.replace("ID", "x").replace("KIND", "weights").replace("NAME", "a");
  const type = path === "forward_backward" ? "application/x-protobuf" : "application/json";
  const body = verb === "GET" ? {} : { body: "{}", headers: { "content-type": type } };
  return server.send(new Request(`http://localhost:8000/api/v1/${place}`, { method: verb, ...body }));
}

test("the page has every public method of the SDK, once, in the order of its source", () => {
  expect(ROWS.map(({ method }) => method)).toEqual(methods);
  expect(PAGE).toContain(`release ${sdk}.`);
});

test.each(ROWS)("$method: $answer", async ({ answer, routes }) => {
  const server = await openServer();
  expect(["works", "client", "refused"]).toContain(answer);
  if (answer !== "client") expect(routes).not.toHaveLength(0);
  for (const route of routes) {
    const { status, json } = await ask(server, route);
    const detail = String(json?.detail);
    // The SDK itself refuses whoami and sends nothing.
    const isMissing = route.path === "auth/token";
    expect(detail.startsWith("There is no route"), `${route.verb} ${route.path}`).toBe(isMissing);
    // Clients repeat other statuses.
    if (answer === "refused" && !isMissing)
      expect([status, detail]).toEqual([404, expect.stringMatching(/^Cannot .+: this server .+\. .+\.$/)]);
  }
});

test("what the notes say is refused, is refused by its name", async () => {
  const server = await openServer();
  const session_id = await server.session();
  const model_id = await server.model(session_id);
  const sampler = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  const { sampling_session_id } = (await server.post("create_sampling_session", sampler)).json;
  const sample = { sampling_session_id, prompt: { chunks: [] }, sampling_params: {} };
  const refused: readonly (readonly [string, object, string])[] = [
    ["asample", { ...sample, record_stability_info: true }, "record_stability_info"],
    ["optim_step", { model_id, optimizer_params: { type: "dimuon" } }, "AdamW"],
    ["save_weights_external", { model_id, path: "a", age_encryption_recipients: ["k"] }, "age_encryption_recipients"],
    ["load_weights", { model_id, path: "a", weights_access_token: "t" }, "weights_access_token"],
    ["create_model", { session_id, model_seq_id: 1, base_model: "toy", optimizer_config: { type: "dimuon" } }, "adamw"],
  ];
  for (const [path, body, name] of refused)
    expect(await server.post(path, body)).toMatchObject({
      status: 422,
      json: { detail: expect.stringContaining(name) },
    });
});
