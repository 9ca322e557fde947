/** The routes that open, keep alive and end sessions. */

import { LOGITS_TEMPERATURE } from "../../../engine/contract/engine.ts";
import { pageOf, SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import { searchSessions } from "../session_search.ts";
import { type Routes, readRequest } from "./bodies.ts";

/** Settings that the SDK adapts to: its plain HTTP transport, chunks in order, a bounded number of samples at once. */
const CLIENT_CONFIG = {
  use_pyqwest_transport: false,
  parallel_fwdbwd_chunks: false,
  sample_max_concurrent_requests: 256,
  proto_compress_fwdbwd: false,
  create_model_via_load_weights: false,
};

export function addTinkerSessionRoutes(app: Routes, service: TinkerService): void {
  const { sessions, models } = service;
  app.get("/api/v1/healthz", (c) => c.json({ status: "ok" }));
  app.post("/api/v1/client/config", (c) => c.json(CLIENT_CONFIG));
  app.post("/api/v1/client/dynamic_config", (c) => c.json({ refresh_interval_sec: 300, sample_cancel_enabled: true }));
  app.post("/api/v1/telemetry", (c) => c.json({ status: "accepted" }));
  app.get("/api/v1/get_server_capabilities", (c) => {
    const supported_models = models.all.flatMap(({ engine, names }) =>
      names.map((model_name) => ({
        model_name,
        max_context_length: engine.contextLength,
        trainable: true,
        sampleable: true,
      })),
    );
    return c.json({ supported_models, loss_fn_config: [LOGITS_TEMPERATURE] });
  });
  app.post("/api/v1/create_session", (c) => {
    const { user_metadata, project_id, display_name } = readRequest(c, SHAPES.createSession);
    const session = sessions.create({
      userMetadata: user_metadata ?? {},
      project: project_id ?? undefined,
      displayName: display_name ?? undefined,
    });
    return c.json({ session_id: session.id, type: "create_session" });
  });
  app.post("/api/v1/session_heartbeat", (c) => {
    sessions.find(readRequest(c, SHAPES.heartbeat).session_id);
    return c.json({ type: "session_heartbeat" });
  });
  app.post("/api/v1/sessions/:id/finish", async (c) => {
    readRequest(c, SHAPES.finish);
    await service.endSession(c.req.param("id"), "its session was finished");
    return c.body(null, 204);
  });
  app.put("/api/v1/sessions/:id/project", async (c) => {
    const { project_id } = readRequest(c, SHAPES.project);
    const session = sessions.find(c.req.param("id"));
    session.project = project_id;
    await service.runs.assign(session.id, project_id);
    return c.body(null, 204);
  });
  app.get("/api/v1/sessions", (c) => {
    const { offset, limit } = pageOf(c.req.query());
    return c.json({ sessions: [...sessions.keys()].slice(offset, offset + limit) });
  });
  app.post("/api/v1/sessions/search", (c) => {
    const request = readRequest(c, SHAPES.searchSessions);
    const query = {
      sessionId: request.session_id ?? undefined,
      displayName: request.display_name ?? undefined,
      projects: request.project_ids ?? undefined,
      metadata: request.user_metadata ?? {},
      owners: request.owner?.type === "user" ? request.owner.owner_urns : undefined,
      statuses: request.statuses?.map((status) => status.type),
    };
    const page = { limit: request.limit, cursor: request.cursor ?? undefined };
    return c.json(searchSessions(query, { sessions, checkpoints: service.checkpoints, ...page }));
  });
  app.get("/api/v1/sessions/:id", (c) => {
    const session = sessions.find(c.req.param("id"));
    return c.json({
      training_run_ids: [...session.runs],
      sampler_ids: [...session.samplers],
      user_metadata: session.userMetadata,
    });
  });
}
