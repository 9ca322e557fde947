/** Checkpoints of other servers, copied here when a client samples from one: so several servers sample one client's weights. */
import { z } from "zod";
import { readReplyJson } from "../../leaves/read_reply.ts";
import { readAs } from "../../leaves/shape.ts";
import type { BaseModels } from "./base_models.ts";
import { isPublicFile, receive } from "./checkpoint/archive.ts";
import type { Checkpoints } from "./checkpoint/checkpoints.ts";
import { type CheckpointRecord, type RunRecord, readCheckpointRecord, readRunRecord } from "./checkpoint/record.ts";
import { type CheckpointPath, formatPath, isName, parsePath } from "./checkpoint_path.ts";
import { Refusal } from "./protocol/outcome.ts";
import { Watch } from "./watch.ts";

/** The servers whose checkpoints may be copied, and the key that they take. */
export interface PeerPlaces {
  readonly urls: readonly string[];
  readonly apiKey: string;
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
  /** A copy ends when nothing of a file arrives for this time, ms. Default 30 s. */
  readonly stillMs?: number | undefined;
  /** How long recorded sequences are sent again, ms. Default 60 s. */
  readonly patienceMs?: number | undefined;
}

export interface PeersOptions extends PeerPlaces {
  /** Ends copies when the server stops, with its reason. */
  readonly stop: AbortSignal;
  readonly checkpoints: Checkpoints;
  readonly models: BaseModels;
}

/**
 * A server's answer about a checkpoint that another one copies: its records as JSON, the token of its files' addresses,
 * and their lengths in bytes. It has no URLs, so that it cannot lead to another server.
 */
export const COPY = z.object({
  run: z.string(),
  checkpoint: z.string(),
  archive: z.string().regex(/^[A-Za-z0-9-]{1,64}$/),
  files: z.record(z.string(), z.number().int().min(0)),
});

interface Offer {
  readonly url: string;
  readonly run: RunRecord;
  readonly record: CheckpointRecord;
  readonly archive: string;
  readonly files: Readonly<Record<string, number>>;
}

/** A copy is deleted after this time; who still needs it asks again. */
const COPY_TTL_SECONDS = 3600;
const ANSWER_MS = 10_000;
const STILL_MS = 30_000;

export class Peers {
  private readonly options: PeersOptions;
  private readonly copying = new Map<string, Promise<void>>();

  constructor(options: PeersOptions) {
    this.options = options;
  }

  /**
   * Copies a checkpoint of another server, unless this server has it or the same copy. A path that no server knows is
   * left to the caller.
   * @throws Refusal 400 for a checkpoint of another base model, and where a server that may have it takes no requests from
   * here; 503 where it cannot be reached
   */
  async bring(path: string): Promise<void> {
    const { checkpoints, urls } = this.options;
    const parsed = parsePath(path);
    const run = checkpoints.hasRun(parsed.run) ? checkpoints.findRun(parsed.run) : undefined;
    if (urls.length === 0 || (run && run.copiedFrom === undefined)) return;
    const copying = this.copying.get(path) ?? this.copy(parsed).finally(() => this.copying.delete(path));
    this.copying.set(path, copying);
    await copying;
  }

  private async copy(path: CheckpointPath): Promise<void> {
    const { checkpoints } = this.options;
    const offer = await this.find(path);
    if (!offer) return;
    const { run, record } = offer;
    // A path can be overwritten with other weights.
    if (checkpoints.has(path) && checkpoints.find(path).record.time === record.time) return;
    this.checkBase(path, run);
    await checkpoints.putRun({ ...run, copiedFrom: offer.url });
    await checkpoints.save(path, {
      step: record.step,
      time: record.time,
      ttlSeconds: COPY_TTL_SECONDS,
      overwrite: true,
      isEncrypted: record.isEncrypted,
      write: (dir) => this.download(offer, dir),
    });
  }

  private checkBase(path: CheckpointPath, run: RunRecord): void {
    const same = this.options.models.all.some(({ engine }) => engine.fingerprint === run.fingerprint);
    if (same) return;
    throw new Refusal(
      400,
      `Cannot sample from ${formatPath(path)}: it belongs to other weights of ${run.baseModel} than this server has. Serve the same model on both servers.`,
    );
  }

  /** Asks the servers in turn. */
  private async find(path: CheckpointPath): Promise<Offer | undefined> {
    const { urls, checkpoints } = this.options;
    let away: string | undefined;
    let refused: Refusal | undefined;
    for (const url of urls) {
      const answer = await this.ask(url, path).catch((error: unknown) => {
        this.options.stop.throwIfAborted();
        if (error instanceof Refusal) refused = error;
        else away = `${url} (${reasonOf(error)})`;
      });
      if (answer) return answer;
    }
    if (checkpoints.has(path)) return undefined;
    if (refused) throw refused;
    if (away === undefined) return undefined;
    throw new Refusal(503, `Cannot copy ${formatPath(path)}: ${away} cannot be asked for it. Try again later.`);
  }

  private async ask(url: string, path: CheckpointPath): Promise<Offer | undefined> {
    const { run, kind, name } = path;
    const { apiKey, stop } = this.options;
    const at = `${url}/api/v1/training_runs/${encodeURIComponent(run)}/checkpoints/${kind}/${name}/copy`;
    const read = async (watch: Watch) =>
      this.offerOf(await this.get(at, { watch, headers: { "X-API-Key": apiKey } }), { url, path });
    return Watch.during(read, { stop, ms: ANSWER_MS });
  }

  private async offerOf(response: Response, { url, path }: { url: string; path: CheckpointPath }) {
    if (response.status === 404) return undefined;
    if (response.status === 401 || response.status === 403) throw await refusalBy(response, { url, path });
    if (!response.ok) throw new Error(`it answers ${response.status}`);
    const read = readAs(COPY, await readReplyJson(response));
    if (!("data" in read)) throw new Error(`its answer has ${read.misfit.path}: ${read.misfit.rule}`);
    const { data } = read;
    const odd = Object.keys(data.files).find((file) => !isName(file) || !isPublicFile(file));
    if (odd !== undefined) throw new Error(`its answer names a file ${JSON.stringify(odd.slice(0, 100))}`);
    const record = readCheckpointRecord(data.checkpoint, path);
    const { archive, files } = data;
    return { url, run: readRunRecord(data.run, path.run), record, archive, files };
  }

  private async download({ url, archive, files }: Offer, dir: string): Promise<void> {
    const { stop, stillMs: ms = STILL_MS } = this.options;
    for (const [name, bytes] of Object.entries(files)) {
      const at = `${url}/archives/${archive}/${encodeURIComponent(name)}`;
      const copy = async (watch: Watch) => {
        const response = await this.get(at, { watch });
        if (!response.ok || !response.body) throw new Error(`it answers ${response.status}`);
        await receive(response.body, { dir, name, bytes, watch });
      };
      await Watch.during(copy, { stop, ms }).catch((error: unknown) => {
        stop.throwIfAborted();
        throw new Refusal(503, `Cannot copy ${name} from ${url}: ${reasonOf(error)}. Try again later.`);
      });
    }
  }

  /** A redirect would lead to a server that is no peer. */
  private get(url: string, { watch, headers = {} }: { watch: Watch; headers?: Record<string, string> }) {
    const { fetch: peerFetch = fetch } = this.options;
    return peerFetch(url, { headers, redirect: "error", signal: watch.signal });
  }
}

/**
 * Returns the refusal of a server that takes no request from here. It is final, because its operator or this one's has
 * to act.
 */
async function refusalBy(response: Response, { url, path }: { url: string; path: CheckpointPath }): Promise<Refusal> {
  const answer: unknown = await readReplyJson(response).catch(() => undefined);
  const detail = String((answer as { detail?: unknown } | undefined)?.detail ?? "no reason given").slice(0, 500);
  const advice =
    response.status === 401
      ? "Start both servers with the same key (--api-key-file)."
      : `Start that server with --allow-host ${new URL(url).hostname}.`;
  return new Refusal(
    400,
    `Cannot copy ${formatPath(path)}: ${url} answers ${response.status} (${detail.replace(/\.$/, "")}). ${advice}`,
  );
}

/** Node's fetch says "fetch failed", and why in the cause. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? cause.message : message;
}
