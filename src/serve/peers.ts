/** Checkpoints of other servers, copied here when a client samples from one: so several servers sample one client's weights. */
import { z } from "zod";
import { readAs } from "../shape.ts";
import type { BaseModels } from "./base_models.ts";
import { receive } from "./checkpoint/archive.ts";
import type { Checkpoints } from "./checkpoint/checkpoints.ts";
import { type CheckpointRecord, type RunRecord, readCheckpointRecord, readRunRecord } from "./checkpoint/record.ts";
import { type CheckpointPath, formatPath, isName, parsePath } from "./checkpoint_path.ts";
import { Refusal } from "./protocol/outcome.ts";

/** The servers whose checkpoints may be copied, and the key that they take. */
export interface PeerPlaces {
  readonly urls: readonly string[];
  readonly apiKey: string;
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
}

export interface PeersOptions extends PeerPlaces {
  readonly checkpoints: Checkpoints;
  readonly models: BaseModels;
}

/** What a server answers about a checkpoint that another one copies: its records as JSON, and its files' URLs. */
export const COPY = z.object({
  run: z.string(),
  checkpoint: z.string(),
  files: z.record(z.string(), z.string()),
});

interface Offer {
  readonly url: string;
  readonly run: RunRecord;
  readonly record: CheckpointRecord;
  readonly files: Readonly<Record<string, string>>;
}

/** A copy is deleted after this time; who still needs it asks again. */
const COPY_TTL_SECONDS = 3600;
const ANSWER_MS = 10_000;

export class Peers {
  private readonly options: PeersOptions;
  private readonly copying = new Map<string, Promise<void>>();

  constructor(options: PeersOptions) {
    this.options = options;
  }

  /**
   * Copies a checkpoint of another server, unless this server has it or the same copy. A path that no server knows is
   * left to the caller.
   * @throws Refusal 400 for a checkpoint of another base model, 503 where a server that may have it cannot be reached
   */
  async bring(path: string): Promise<void> {
    const { checkpoints, urls } = this.options;
    const parsed = parsePath(path);
    const known = checkpoints.hasRun(parsed.run) ? checkpoints.findRun(parsed.run) : undefined;
    if (urls.length === 0 || (known && known.copiedFrom === undefined)) return;
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
    for (const url of urls) {
      const answer = await this.ask(url, path).catch((error: Error) => {
        away = `${url} (${error.message})`;
      });
      if (answer) return answer;
    }
    if (away === undefined || checkpoints.has(path)) return undefined;
    throw new Refusal(503, `Cannot copy ${formatPath(path)}: ${away} cannot be asked for it. Try again later.`);
  }

  private async ask(url: string, path: CheckpointPath): Promise<Offer | undefined> {
    const { run, kind, name } = path;
    const response = await this.get(
      `${url}/api/v1/training_runs/${encodeURIComponent(run)}/checkpoints/${kind}/${name}/copy`,
      AbortSignal.timeout(ANSWER_MS),
    );
    if (response.status === 404) return undefined;
    if (!response.ok) throw new Error(`it answers ${response.status}`);
    const read = readAs(COPY, await response.json());
    if (!("data" in read)) throw new Error(`its answer has ${read.misfit.path}: ${read.misfit.rule}`);
    const { data } = read;
    const odd = Object.keys(data.files).find((file) => !isName(file));
    if (odd !== undefined) throw new Error(`its answer names a file ${JSON.stringify(odd.slice(0, 100))}`);
    const record = readCheckpointRecord(data.checkpoint, path);
    return { url, run: readRunRecord(data.run, run), record, files: data.files };
  }

  private async download({ url, files }: Offer, dir: string): Promise<void> {
    for (const [name, file] of Object.entries(files)) {
      // The server may know itself under another address than the one that reaches it.
      const response = await this.get(new URL(new URL(file).pathname, url).href);
      if (!response.ok || !response.body)
        throw new Refusal(503, `Cannot copy ${name} from ${url}: it answers ${response.status}. Try again later.`);
      await receive(response.body, { dir, name });
    }
  }

  private get(url: string, signal?: AbortSignal): Promise<Response> {
    const { apiKey, fetch: own = fetch } = this.options;
    return own(url, { headers: { "X-API-Key": apiKey }, ...(signal && { signal }) });
  }
}
