/** The routes that list training runs, in memory and on disk. */
import type { CheckpointRecord, RunRecord } from "../checkpoint/record.ts";
import { formatPath, parsePath } from "../checkpoint_path.ts";
import { pageOf, SHAPES } from "../protocol/requests.ts";
import type { TinkerService } from "../service.ts";
import { type Routes, readRequest } from "./bodies.ts";

export function addTrainingRunRoutes(app: Routes, service: TinkerService): void {
  const { checkpoints } = service;
  app.post("/api/v1/weights_info", (c) => {
    const { tinker_path } = readRequest(c, SHAPES.weightsInfo);
    const { record } = checkpoints.find(parsePath(tinker_path));
    const run = checkpoints.findRun(record.run);
    const { config } = run;
    return c.json({
      base_model: service.models.ofRun(run).name,
      is_lora: config.rank > 0,
      lora_rank: config.rank > 0 ? config.rank : null,
      train_unembed: config.trainUnembed,
      train_mlp: config.trainMlp,
      train_attn: config.trainAttn,
    });
  });
  app.get("/api/v1/training_runs", (c) => {
    const { project_id: project, ...query } = c.req.query();
    const { offset, limit } = pageOf(query);
    const runs = allRuns(service).filter((run) => project === undefined || run.project === project);
    // Which project a run with an unreadable record belongs to is unknown.
    const damage = project === undefined ? checkpoints.damage : [];
    const rows = [
      ...runs.map((run) => () => runInfo(service, run)),
      ...damage.flatMap(({ run }) => (run === undefined ? [] : () => damagedInfo(service, run))),
    ];
    return c.json({
      training_runs: rows.slice(offset, offset + limit).map((row) => row()),
      cursor: { offset, limit, total_count: rows.length },
    });
  });
  app.get("/api/v1/training_runs/:id", (c) => {
    const id = c.req.param("id");
    const run = service.runs.get(id)?.record;
    if (!run && checkpoints.damage.some((entry) => entry.run === id)) return c.json(damagedInfo(service, id));
    return c.json(runInfo(service, run ?? checkpoints.findRun(id)));
  });
}

/** A run in memory has a newer record than its file. */
function allRuns({ checkpoints, runs }: TinkerService): RunRecord[] {
  return checkpoints.allRuns().map((run) => runs.get(run.id)?.record ?? run);
}

function runInfo(service: TinkerService, run: RunRecord) {
  return {
    training_run_id: run.id,
    base_model: service.models.ofRun(run).name,
    model_owner: "local",
    is_lora: run.config.rank > 0,
    corrupted: false,
    lora_rank: run.config.rank > 0 ? run.config.rank : null,
    last_request_time: run.lastRequest,
    ...lastCheckpoints(service, run.id),
    user_metadata: run.userMetadata ?? null,
  };
}

/** A run with an unreadable record. The protocol requires the other fields, which are unknown. */
function damagedInfo(service: TinkerService, run: string) {
  const last = service.checkpoints.list(run)[0];
  return {
    training_run_id: run,
    base_model: "unknown",
    model_owner: "local",
    is_lora: false,
    corrupted: true,
    lora_rank: null,
    last_request_time: last?.time ?? new Date(0).toISOString(),
    ...lastCheckpoints(service, run),
    user_metadata: null,
  };
}

function lastCheckpoints({ checkpoints }: TinkerService, run: string) {
  const saved = checkpoints.list(run);
  const last = (kind: CheckpointRecord["kind"]) => {
    const record = saved.find((record) => record.kind === kind);
    return record ? checkpointInfo(record) : null;
  };
  return { last_checkpoint: last("weights"), last_sampler_checkpoint: last("sampler_weights") };
}

/** The protocol's names of the kinds. */
const CHECKPOINT_TYPES = { weights: "training", sampler_weights: "sampler", external_weights: "external" } as const;

/** A checkpoint in the protocol's terms. */
export function checkpointInfo(record: CheckpointRecord) {
  return {
    checkpoint_id: `${record.kind}/${record.name}`,
    checkpoint_type: CHECKPOINT_TYPES[record.kind],
    time: record.time,
    tinker_path: formatPath(record),
    size_bytes: record.bytes,
    public: record.isPublic,
    expires_at: record.expiresAt ?? null,
    user_metadata: record.userMetadata ?? null,
  };
}
