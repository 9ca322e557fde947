import { expect, test } from "vitest";
import { backward, openServer, step } from "./tinker_client.ts";

test("the status page shows models, checkpoints and waiting requests", async () => {
  const server = await openServer({ limits: { gapMs: 5000 } });
  const id = await server.model();
  await server.result("forward_backward", backward(id, { seq: 1 }));
  await server.result("optim_step", step(id, 2));
  await server.result("save_weights", { model_id: id, seq_id: 3, path: "kept" });
  await server.post("optim_step", step(id, 9));
  const page = new TextDecoder().decode((await server.get("/")).bytes);
  for (const text of [id, "LoRA, rank 4", `tinker://${id}/weights/kept`, "1 wait for request 4", "toy: no device"])
    expect(page).toContain(text);
});

test("text from clients is escaped", async () => {
  const server = await openServer();
  const held = server.service.policies.base(server.service.models.all[0]!);
  server.service.samplers.add({ id: "<script>alert(1)</script>", ...held }, server.service.sessions.create({}));
  const page = new TextDecoder().decode((await server.get("/")).bytes);
  expect(page).not.toContain("<script>alert");
  expect(page).toContain("&#60;script&#62;");
});

test("the metrics are in Prometheus' format and count the work", async () => {
  const server = await openServer();
  const id = await server.model();
  await server.result("forward_backward", backward(id, { seq: 1, targets: [1, 2, 3, 4] }));
  await server.result("optim_step", step(id, 2));
  const text = new TextDecoder().decode((await server.get("/metrics")).bytes);
  const figures = new Map(
    text
      .split("\n")
      .filter((line) => line && !line.startsWith("#"))
      .map((line) => {
        expect(line).toMatch(/^[a-z_]+(\{[^}]*\})? [0-9.e+-]+$/);
        return [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))];
      }),
  );
  expect(figures.get("grpu_trained_tokens_total")).toBe(4);
  expect(figures.get("grpu_optim_steps_total")).toBe(1);
  expect(figures.get("grpu_models_loaded")).toBe(1);
  expect(figures.get('grpu_http_answers_total{route="/api/v1/optim_step",status="200"}')).toBe(1);
});
