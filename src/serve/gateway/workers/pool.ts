/** Inference servers behind the gateway: which one a session's call goes to, and which of them answer. */

export interface WorkerInfo {
  readonly worker_id: string;
  /** Address without a path: `http://host:8000`. */
  readonly url: string;
  readonly api_path: string;
  readonly model_name: string | null;
  readonly weight: number;
  /** Whether `/v1/models` shows `model_name`. False for a name that only sessions know, such as a run's. */
  readonly is_listed: boolean;
}

/** A worker as routes show it. */
export interface WorkerStatus extends WorkerInfo {
  readonly healthy: boolean;
  readonly active_requests: number;
}

export interface NewWorker {
  /** A path is taken as `api_path`, unless that is given. */
  readonly url: string;
  readonly worker_id?: string | undefined;
  readonly api_path?: string | undefined;
  readonly model_name?: string | null | undefined;
  readonly weight?: number | undefined;
  /** Default true. */
  readonly is_listed?: boolean | undefined;
  /** Sent as a bearer token; agents' keys are never forwarded. */
  readonly api_key?: string | undefined;
}

export interface WorkerPoolOptions {
  /** Seconds between two looks at each worker's `/health`. Default 10. */
  readonly healthCheckInterval?: number | undefined;
  /**
   * Sends a request. Default: the runtime's `fetch`, which in Node gives up an answer that is silent for 300 s: give one
   * without a time limit where replies may take longer.
   */
  readonly fetch?: SendFunction | undefined;
  readonly log?: ((line: string) => void) | undefined;
}

/** The part of `fetch` that the pool uses. */
export type SendFunction = (url: string, init: RequestInit) => Promise<Response>;

interface Worker {
  info: WorkerInfo;
  apiKey: string | undefined;
  active: number;
  failures: number;
  isDead: boolean;
}

/** A worker that a call was given to. */
export interface RoutedWorker {
  readonly info: WorkerInfo;
  readonly apiKey: string | undefined;
  /** The call is over. */
  release(): void;
}

const UNNAMED = { model_name: null, weight: 1, is_listed: true };
const FAILURES_UNTIL_DEAD = 3;
const HEALTH_TIMEOUT_MS = 5000;
/** Sessions whose worker is remembered. */
const STICKY_SESSIONS = 10_000;

export class WorkerPool {
  readonly fetch: SendFunction;
  private readonly workers = new Map<string, Worker>();
  /** Worker by session; the one longest unused comes first. */
  private readonly sticky = new Map<string, Worker>();
  private readonly everyMs: number;
  private readonly log: (line: string) => void;
  private timer: ReturnType<typeof setInterval> | undefined;

  constructor({ healthCheckInterval = 10, fetch: workerFetch = fetch, log = () => {} }: WorkerPoolOptions = {}) {
    this.everyMs = healthCheckInterval * 1000;
    this.fetch = workerFetch;
    this.log = log;
  }

  get size(): number {
    return this.workers.size;
  }

  /** A worker of a known URL keeps its id and its running calls; what is given beside replaces what was. */
  add(worker: NewWorker): WorkerInfo {
    const { url, api_path } = splitUrl(worker.url, worker.api_path);
    const existing = [...this.workers.values()].find(({ info }) => info.url === url);
    const { worker_id = crypto.randomUUID(), ...about } = { ...UNNAMED, ...existing?.info, ...named(worker) };
    const info = { ...about, worker_id: existing?.info.worker_id ?? worker_id, url, api_path };
    if (existing) Object.assign(existing, { info, apiKey: worker.api_key ?? existing.apiKey });
    else this.workers.set(worker_id, { info, apiKey: worker.api_key, active: 0, failures: 0, isDead: false });
    this.sticky.clear();
    this.timer ??= this.watch();
    return info;
  }

  /** @returns false for an unknown id */
  remove(workerId: string): boolean {
    this.sticky.clear();
    return this.workers.delete(workerId);
  }

  list(): WorkerStatus[] {
    return [...this.workers.values()].map(({ info, isDead, active }) => ({
      ...info,
      healthy: !isDead,
      active_requests: active,
    }));
  }

  /**
   * The session's worker, while it answers; else the one with the fewest running calls per weight.
   * @param of.than a worker that just failed, taken only where there is no other
   * @param of.model only workers of that `model_name` where there are any, else those without a name before others
   * @param of.isNamed only workers of that `model_name`, because no other has its weights
   * @returns undefined where none answers
   */
  route(
    session: string | undefined,
    of: {
      readonly than?: RoutedWorker | undefined;
      readonly model?: unknown;
      readonly isNamed?: boolean | undefined;
    } = {},
  ): RoutedWorker | undefined {
    const healthy = [...this.workers.values()].filter(({ isDead }) => !isDead);
    const named = [...this.workers.values()].filter(({ info }) => info.model_name === of.model);
    const unnamed = healthy.filter(({ info }) => info.model_name === null);
    // Others would answer with another model: of workers that have the name, dead ones are waited for.
    const others = of.model === undefined ? healthy : preferred(healthy, unnamed);
    const usable = named.length > 0 || of.isNamed ? named.filter(({ isDead }) => !isDead) : others;
    const candidates = preferred(
      usable,
      usable.filter(({ info }) => info !== of.than?.info),
    );
    const sticky = session === undefined ? undefined : this.sticky.get(session);
    const load = ({ active, info }: Worker) => active / info.weight;
    const worker = sticky && candidates.includes(sticky) ? sticky : candidates.toSorted((a, b) => load(a) - load(b))[0];
    if (!worker) return undefined;
    if (session !== undefined) this.stick(session, worker);
    worker.active++;
    let isOver = false;
    const release = () => {
      if (!isOver) worker.active--;
      isOver = true;
    };
    return { info: worker.info, apiKey: worker.apiKey, release };
  }

  private stick(session: string, worker: Worker): void {
    this.sticky.delete(session);
    this.sticky.set(session, worker);
    if (this.sticky.size > STICKY_SESSIONS) this.sticky.delete(this.sticky.keys().next().value!);
  }

  close(): void {
    clearInterval(this.timer);
  }

  private watch(): ReturnType<typeof setInterval> {
    const timer = setInterval(() => void this.checkAll(), this.everyMs);
    // In Node a timer keeps the process; in a page it is a number.
    (timer as { unref?: () => void }).unref?.();
    return timer;
  }

  /** Asks every worker for its health. A dead one that answers is used again. Never rejects. */
  async checkAll(): Promise<void> {
    await Promise.all([...this.workers.values()].map((worker) => this.check(worker)));
  }

  private async check(worker: Worker): Promise<void> {
    const isFine = await this.answers(worker);
    const { url } = worker.info;
    if (isFine && worker.isDead) this.log(`worker ${url} answers again`);
    worker.failures = isFine ? 0 : worker.failures + 1;
    const isDead = worker.failures >= FAILURES_UNTIL_DEAD;
    if (isDead && !worker.isDead) this.log(`worker ${url} failed ${worker.failures} health checks: it gets no calls`);
    worker.isDead = isDead;
  }

  private async answers({ info, apiKey }: Worker): Promise<boolean> {
    try {
      const response = await this.fetch(`${info.url}/health`, {
        headers: apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` },
        signal: AbortSignal.timeout(HEALTH_TIMEOUT_MS),
      });
      await response.body?.cancel();
      return response.status === 200;
    } catch {
      return false;
    }
  }
}

/** Returns the defined fields alone, because an undefined one would hide a known value. */
function named({
  worker_id,
  model_name,
  weight,
  is_listed,
}: NewWorker): Partial<Pick<WorkerInfo, "worker_id" | "model_name" | "weight" | "is_listed">> {
  return {
    ...(worker_id !== undefined && { worker_id }),
    ...(model_name !== undefined && { model_name }),
    ...(weight !== undefined && { weight }),
    ...(is_listed !== undefined && { is_listed }),
  };
}

function preferred<T>(candidates: readonly T[], some: readonly T[]): readonly T[] {
  return some.length > 0 ? some : candidates;
}

/** `http://host:8000/v1` is the server `http://host:8000` with the path `/v1`, which is the default. */
export function splitUrl(raw: string, apiPath?: string): { url: string; api_path: string } {
  const whole = raw.replace(/\/+$/, "");
  if (apiPath !== undefined) return { url: whole, api_path: apiPath };
  const { origin, pathname } = new URL(whole);
  return pathname === "/" ? { url: whole, api_path: "/v1" } : { url: origin, api_path: pathname };
}
