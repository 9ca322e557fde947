/** Whether the nodes of a cluster reach the service of a run: a small job asks it from each of them. */
import { RemoteError } from "../../leaves/errors.ts";
import { CauseFinder } from "./cause.ts";
import { jobFailureText } from "./failure.ts";
import type { RayJobs } from "./jobs.ts";

export interface ProbeOptions {
  /** The service's address, as the cluster is to use it. `/health` is added. */
  readonly url: string;
  readonly token: string;
  /** The id of the run: another one's service may listen there. */
  readonly run: string;
  /** Text of `config/ray/grpu_probe.py`. */
  readonly script: string;
  /** Python packages whose versions the nodes are to tell. */
  readonly packages?: readonly string[] | undefined;
  /** The interpreter of the job's workers. */
  readonly py_executable?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** How long the whole may take, ms. Default 3 minutes: a busy cluster starts a job slowly. */
  readonly timeoutMs?: number | undefined;
}

/** One node's answer. */
export interface NodeAnswer {
  /** The node's address within the cluster. */
  readonly node: string;
  /** `ok`: our service of this run. `other_service`: something else answered with status 200. `task`: nothing ran there. */
  readonly kind: "ok" | "other_service" | "status" | "refused" | "timeout" | "name" | "tls" | "task" | "other";
  /** Status of an HTTP reply. */
  readonly status?: number | undefined;
  /** Error in the words of the node. */
  readonly error?: string | undefined;
  /** CPUs that Ray gives away on the node, in use or not. */
  readonly cpus?: number | undefined;
  /** GPUs of the node, in use or not. */
  readonly gpus?: number | undefined;
  /** Versions of the packages that were asked for, by name; null for one that is not installed there. */
  readonly versions?: Readonly<Record<string, string | null>> | undefined;
}

const TIMEOUT_MS = 3 * 60_000;
const MARK = "GRPU_PROBE ";
/** The probe's job is removed from the cluster's list, if it ends in this time, ms. */
const END_MS = 5_000;

/** @returns an answer per node. @throws {RemoteError} if the probe itself cannot run. */
export async function probe(jobs: RayJobs, options: ProbeOptions): Promise<NodeAnswer[]> {
  const { url, token, run, script, signal, timeoutMs = TIMEOUT_MS } = options;
  const submission_id = `grpu-probe-${crypto.randomUUID()}`;
  const files = new Map([["grpu_probe.py", new TextEncoder().encode(script)]]);
  const packages = options.packages?.join(" ") ?? "";
  const env = { GRPU_SERVICE_URL: url, GRPU_SERVICE_TOKEN: token, ...(packages && { GRPU_PACKAGES: packages }) };
  const spec = { submission_id, entrypoint: "python grpu_probe.py", files, env, metadata: { run } };
  await jobs.submit({ ...spec, py_executable: options.py_executable }, signal);
  let isDone = false;
  try {
    const found = await watch(jobs, submission_id, { signal, timeoutMs });
    isDone = true;
    return found.map((each) => nodeAnswer(each, run));
  } finally {
    await end(jobs, { id: submission_id, isKept: !isDone });
  }
}

/** The service's answer, as the script prints it. */
interface Printed {
  readonly node: string;
  readonly status?: number;
  readonly body?: string;
  readonly kind?: NodeAnswer["kind"];
  readonly error?: string;
  readonly cpus?: number;
  readonly gpus?: number;
  readonly versions?: NodeAnswer["versions"];
}

/** Follows the job until it prints its line. */
async function watch(
  jobs: RayJobs,
  id: string,
  { signal, timeoutMs }: { signal: AbortSignal | undefined; timeoutMs: number },
): Promise<Printed[]> {
  const done = new AbortController();
  const late = AbortSignal.timeout(timeoutMs);
  const cause = new CauseFinder();
  let printed: Printed[] | undefined;
  const job = await jobs
    .follow(
      id,
      (line) => {
        cause.take(line);
        if (!line.text.startsWith(MARK)) return;
        printed = JSON.parse(line.text.slice(MARK.length)) as Printed[];
        done.abort();
      },
      AbortSignal.any([done.signal, late, ...(signal ? [signal] : [])]),
    )
    .catch((error) => {
      if (printed) return undefined;
      signal?.throwIfAborted();
      if (!late.aborted) throw error;
      throw notChecked(
        `the cluster did not run its job ${id} within ${timeoutMs / 1000} s`,
        "See grpu jobs list for what else runs there",
      );
    });
  if (printed) return printed;
  const why = job && jobFailureText(job, cause.cause());
  throw notChecked(
    why?.replace("Cannot", "cannot").replace(/\.$/, "") ?? "its job printed nothing",
    "Check that the cluster's Python has Ray",
  );
}

function notChecked(why: string, todo: string): RemoteError {
  return new RemoteError(`Cannot check whether the cluster reaches the service: ${why}. ${todo}.`, {
    retryable: false,
  });
}

/** Leaves no trace of the probe, as far as that is quick, unless its log is needed. */
async function end(jobs: RayJobs, { id, isKept }: { id: string; isKept: boolean }): Promise<void> {
  try {
    await jobs.stop(id, { waitMs: isKept ? 0 : END_MS, signal: AbortSignal.timeout(2 * END_MS) });
    if (!isKept) await jobs.delete(id, AbortSignal.timeout(END_MS));
  } catch {
    // The job holds nothing and ends by itself.
  }
}

function nodeAnswer({ node, status, body, kind, error, versions, cpus, gpus }: Printed, run: string): NodeAnswer {
  const details = {
    ...(versions && { versions }),
    ...(cpus !== undefined && { cpus }),
    ...(gpus !== undefined && { gpus }),
  };
  if (status === undefined) return { node, kind: kind ?? "other", error, ...details };
  if (status !== 200) return { node, kind: "status", status, ...details };
  return { node, kind: kindOf(body ?? "", run), status, ...details };
}

function kindOf(body: string, run: string): NodeAnswer["kind"] {
  try {
    const health = JSON.parse(body) as { service?: unknown; run?: unknown };
    return health.service === "grpu" && health.run === run ? "ok" : "other_service";
  } catch {
    return "other_service";
  }
}

/**
 * @returns an answer per node
 * @throws {RemoteError} unless every node reaches the service; the message says what to change.
 */
export async function checkReachable(jobs: RayJobs, options: ProbeOptions): Promise<readonly NodeAnswer[]> {
  const answers = await probe(jobs, options);
  const message = unreachableMessage(answers, options.url);
  if (message !== undefined) throw new RemoteError(message, { retryable: false });
  return answers;
}

/** Undefined if every node reaches the service. */
export function unreachableMessage(answers: readonly NodeAnswer[], url: string): string | undefined {
  const failed = answers.filter(({ kind }) => kind !== "ok");
  const [first] = failed;
  if (answers.length === 0) return `Cannot reach the service at ${url}: the cluster has no node that runs. Start one.`;
  if (!first) return undefined;
  const others = failed.length > 1 ? ` and ${failed.length - 1} more` : "";
  const who = `node ${first.node}${others} of the ${answers.length} of the cluster`;
  return `Cannot reach the service at ${url} from ${answers.length === 1 ? `the cluster's node ${first.node}` : who}: ${whatOf(first)}. ${adviceFor(first, url)}.`;
}

function whatOf({ kind, status, error = "" }: NodeAnswer): string {
  const words: Readonly<Partial<Record<NodeAnswer["kind"], string>>> = {
    refused: "the connection is refused",
    timeout: "there is no answer within 10 s",
    name: "the name cannot be resolved",
    tls: "the certificate is not accepted",
    status: `it answers ${status}`,
    other_service: "something else than this run's service answers",
    task: "no task could run there",
  };
  return [words[kind] ?? "the request fails", error && `(${error.replace(/\.$/, "")})`].filter(Boolean).join(" ");
}

const LOOPBACK = /^https?:\/\/(127\.\d+\.\d+\.\d+([:/]|$)|localhost[:/]|localhost$|\[::1\])/i;

function adviceFor({ kind, status }: NodeAnswer, url: string): string {
  if (status === 401 || status === 403)
    return "Its token is not this run's: another run's service listens there, or a proxy leaves out the Authorization header";
  if (LOOPBACK.test(url) && kind !== "task")
    return "A loopback address means each node itself: listen on an address that the cluster reaches (service.host: 0.0.0.0) and give it as service.url";
  const advice: Readonly<Partial<Record<NodeAnswer["kind"], string>>> = {
    refused: "Listen beyond loopback (service.host: 0.0.0.0), and check the port of service.url",
    timeout:
      "Let the cluster's nodes through the firewall to that port, or set service.url to an address that they reach",
    name: "Set service.url to a name or a numeric address that the cluster's nodes know",
    tls: "Use a certificate that the nodes trust, or http:// within a private network",
    status: "Check the port of service.url, and proxies on the way",
    other_service: "Check the port of service.url",
    task: "Check the node; the cluster's dashboard shows its state",
  };
  return advice[kind] ?? "Check the network between the cluster and this machine, and service.url";
}
