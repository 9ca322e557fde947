/**
 * A server against a simple model of what it must hold: random sequences of training steps (sent twice, or out of order),
 * saves, loads, deletions, expiry and restarts. After each the list of checkpoints is the model's, and a checkpoint
 * loads while it is listed and never after.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { openServer, step, type TestServer } from "./tinker_client.ts";

type Kind = "weights" | "sampler_weights";

const kind = fc.constantFrom<Kind>("weights", "sampler_weights");
const name = fc.constantFrom("a", "b");
const ttl = fc.option(fc.constantFrom(30, 90), { nil: undefined });
const operation = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant("step" as const),
      how: fc.constantFrom("once", "twice", "early"),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({ do: fc.constant("save" as const), kind, name, ttl, overwrite: fc.boolean() }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant("load" as const), kind, name, optimizer: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("delete" as const), kind, name }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("publish" as const), kind, name }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("change ttl" as const), kind, name, ttl }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("wait" as const), seconds: fc.constantFrom(20, 60) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("restart" as const) }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer O> ? O : never;

interface Saved {
  isPublic: boolean;
  expires: number | undefined;
}

beforeEach(() => void vi.useFakeTimers({ toFake: ["Date"] }));
afterEach(() => void vi.useRealTimers());

class Play {
  private readonly root: string;
  private server!: TestServer;
  private run = "";
  private seq = 0;
  private steps = 0;
  /** By the path behind `tinker://`. */
  private readonly saved = new Map<string, Saved>();

  constructor(root: string) {
    this.root = root;
  }

  async start(): Promise<void> {
    this.server = await openServer({ root: this.root });
    this.run = await this.server.model();
    this.seq = 0;
    this.steps = 0;
  }

  close(): void {
    this.server.service.close();
  }

  async perform(operation: Operation): Promise<void> {
    if (operation.do === "step") await this.step(operation.how);
    else if (operation.do === "save") await this.save(operation);
    else if (operation.do === "load") await this.load(operation);
    else if (operation.do === "wait") vi.setSystemTime(Date.now() + operation.seconds * 1000);
    else if (operation.do === "restart") {
      this.close();
      await this.start();
    } else await this.change(operation);
    await this.compare();
  }

  /** A checkpoint that has not expired. */
  private alive(path: string): Saved | undefined {
    const saved = this.saved.get(path);
    return saved && (saved.expires === undefined || saved.expires > Date.now()) ? saved : undefined;
  }

  private pathOf({ kind, name }: { kind: Kind; name: string }): string {
    return `${this.run}/${kind}/${name}`;
  }

  private async step(how: string): Promise<void> {
    const numbers = how === "early" ? [this.seq + 2, this.seq + 1] : [this.seq + 1];
    if (how === "twice") numbers.push(this.seq + 1);
    const sent = [];
    for (const number of numbers) sent.push(await this.server.post("optim_step", step(this.run, number)));
    if (how === "twice") expect(sent[1]!.json).toEqual(sent[0]!.json);
    for (const { json } of sent)
      expect((await this.server.retrieve(json.request_id)).json.metrics).toEqual({ grad_norm: 1 });
    this.seq = Math.max(...numbers);
    this.steps += how === "early" ? 2 : 1;
    const taken = this.server.engine.calls.filter((call) => call === "step").length;
    expect(taken).toBe(this.steps);
  }

  private async save(it: { kind: Kind; name: string; ttl: number | undefined; overwrite: boolean }): Promise<void> {
    const isTraining = it.kind === "weights";
    const route = isTraining ? "save_weights" : "save_weights_for_sampler";
    const path = this.pathOf(it);
    const { json } = await this.server.result(route, {
      model_id: this.run,
      seq_id: ++this.seq,
      path: it.name,
      ...(it.ttl !== undefined && { ttl_seconds: it.ttl }),
      ...(isTraining && { overwrite: it.overwrite }),
    });
    if (this.alive(path) && !(isTraining && it.overwrite)) {
      expect(json.error, path).toContain("there is already a checkpoint of that name");
      return;
    }
    expect(json.path, json.error).toBe(`tinker://${path}`);
    const expires = it.ttl === undefined ? undefined : Date.now() + it.ttl * 1000;
    this.saved.set(path, { isPublic: false, expires });
  }

  private async load(it: { kind: Kind; name: string; optimizer: boolean }): Promise<void> {
    const path = this.pathOf(it);
    const body = {
      model_id: this.run,
      seq_id: ++this.seq,
      path: `tinker://${path}`,
      optimizer: it.optimizer,
    };
    const before = this.server.engine.calls.length;
    const promised = await this.server.post("load_weights", body);
    const { json } = promised.status === 200 ? await this.server.retrieve(promised.json.request_id) : promised;
    const mayLoad = this.alive(path) !== undefined && !(it.optimizer && it.kind === "sampler_weights");
    const loads = this.server.engine.calls.slice(before).filter((call) => call.startsWith("load"));
    if (mayLoad) {
      expect(json.error, path).toBeUndefined();
      expect(loads).toEqual([it.optimizer ? "load all" : "load weights"]);
    } else {
      expect(json.error ?? json.detail, path).toBeTypeOf("string");
      expect(loads).toEqual([]);
    }
  }

  private async change(it: {
    readonly do: "delete" | "publish" | "change ttl";
    readonly kind: Kind;
    readonly name: string;
    readonly ttl?: number | undefined;
  }): Promise<void> {
    const path = this.pathOf(it);
    const saved = this.alive(path);
    const [method, suffix] =
      it.do === "delete" ? ["DELETE", ""] : it.do === "publish" ? ["POST", "/publish"] : ["PUT", "/ttl"];
    const url = `http://localhost:8000/api/v1/training_runs/${this.run}/checkpoints/${it.kind}/${it.name}${suffix}`;
    const body = it.do === "change ttl" ? JSON.stringify({ ttl_seconds: it.ttl ?? null }) : undefined;
    const headers = { "content-type": "application/json" };
    const { status } = await this.server.send(new Request(url, { method: method!, headers, ...(body && { body }) }));
    expect(status, `${it.do} ${path}`).toBe(saved ? 204 : 404);
    if (!saved) return;
    if (it.do === "delete") this.saved.delete(path);
    else if (it.do === "publish") saved.isPublic = true;
    else saved.expires = it.ttl === undefined ? undefined : Date.now() + it.ttl * 1000;
  }

  private async compare(): Promise<void> {
    const { json } = await this.server.get("checkpoints?limit=100");
    const listed = json.checkpoints.map((it: Record<string, unknown>) => [
      it.tinker_path,
      {
        isPublic: it.public,
        expires: it.expires_at === null ? undefined : Date.parse(it.expires_at as string),
      },
    ]);
    const wanted = [...this.saved].filter(([path]) => this.alive(path)).map(([path, it]) => [`tinker://${path}`, it]);
    expect(new Map(listed)).toEqual(new Map(wanted as [string, Saved][]));
  }
}

test("what a server holds is what was saved and has neither expired nor been deleted", {
  timeout: 60_000,
}, async () => {
  const play = async (operations: Operation[]) => {
    const root = await mkdtemp(join(tmpdir(), "grpu-model-"));
    const play = new Play(root);
    try {
      await play.start();
      for (const operation of operations) await play.perform(operation);
    } finally {
      play.close();
      await rm(root, { recursive: true, force: true });
    }
  };
  const sequences = fc.array(operation, { minLength: 8, maxLength: 24 });
  await fc.assert(fc.asyncProperty(sequences, play), { numRuns: 60, seed: 20261122 });
});
