/** Rules of agents in other processes and of their gateway: two generations of settings that must not contradict each other. */
import { SERVICE_FIELDS } from "../fields/rllm/services.ts";
import { maskText } from "../mask.ts";
import type { YamlValue } from "../yaml/tree.ts";
import type { Finding, Rule } from "./rules.ts";

type Check = Rule["check"];
type Read = Parameters<Check>[0];

const error = (path: string, message: string): Finding => ({ severity: "error", path, message });
const warning = (path: string, message: string): Finding => ({ severity: "warning", path, message });
type Service = keyof typeof SERVICE_FIELDS;
/** A value that is not the published default. Printed configurations hold the defaults, so one that is written is no opinion. */
const isSet = (read: Read, path: Service) => (read(path) ?? null) !== SERVICE_FIELDS[path].default;
const shown = (value: YamlValue | undefined) => maskText(JSON.stringify(value ?? null));

/** The same setting in both generations. */
const SAME: readonly (readonly [gateway: Service, sdk: Service])[] = [
  ["rllm.gateway.host", "rllm.sdk.proxy.host"],
  ["rllm.gateway.port", "rllm.sdk.proxy.port"],
  ["rllm.gateway.db_path", "rllm.sdk.store.path"],
];

const contradictions: readonly Check[] = SAME.map(([gateway, sdk]) => (read) => {
  if (!isSet(read, gateway) || !isSet(read, sdk) || read(gateway) === read(sdk)) return undefined;
  return error(
    gateway,
    `Cannot use ${gateway}=${shown(read(gateway))} and ${sdk}=${shown(read(sdk))}: they are two names of one setting. Set one of the two.`,
  );
});

/** Settings that only a gateway reads, which only `task.agent` starts. */
const GATEWAY_ONLY = [
  "rllm.sdk.proxy.host",
  "rllm.sdk.proxy.port",
  "rllm.sdk.proxy.mode",
  "rllm.sdk.proxy.admin_token",
  "rllm.gateway.host",
  "rllm.gateway.port",
  "rllm.gateway.tunnel",
] as const satisfies readonly Service[];

/** Metadata keys of calls: read by a gateway, and by a run that trains on traces, which no setting tells. */
export const PROCESSING_KEYS: readonly Service[] = [
  "rllm.sdk.processing.groupby_key",
  "rllm.sdk.processing.traj_name_key",
];

const agentsOf = (read: Read) => [read("task.agent") ?? []].flat();

const addresses: Check = (read) => {
  const wrong = agentsOf(read).find((each) => !isHttp(each));
  if (wrong === undefined) return undefined;
  return error(
    "task.agent",
    `Cannot ask the agent ${shown(wrong)}: it is no address of HTTP without a password. Write http://HOST:PORT/PATH, or a list of such addresses.`,
  );
};

function isHttp(value: YamlValue | undefined): boolean {
  if (typeof value !== "string" || !URL.canParse(value)) return false;
  const { protocol, username, password } = new URL(value);
  return ["http:", "https:"].includes(protocol) && username === "" && password === "";
}

const tunnel: Check = (read) => {
  const value = read("rllm.gateway.tunnel") ?? null;
  if (value === null || isHttp(value)) return undefined;
  return error(
    "rllm.gateway.tunnel",
    `Cannot use the tunnel ${shown(value)}: grpu starts no tunnel program. Start it yourself and write the URL that it gives.`,
  );
};

const unread: Check = (read) => {
  if (agentsOf(read).length > 0) return undefined;
  const path = GATEWAY_ONLY.find((each) => isSet(read, each));
  if (path === undefined) return undefined;
  return warning(
    path,
    `${path} has no effect: no gateway starts, because task.agent names no agent in another process.`,
  );
};

const unreadKeys: Check = (read) => {
  const isRecorded = read("rllm.gateway.store") === "sqlite" || isSet(read, "rllm.sdk.store.path");
  const path = PROCESSING_KEYS.find((each) => isSet(read, each) && !(isRecorded && each.endsWith("traj_name_key")));
  if (path === undefined || agentsOf(read).length > 0) return undefined;
  return warning(
    path,
    `${path} has no effect: it acts on calls of agents in other processes (task.agent) and on recorded ones (--from-traces).`,
  );
};

const database: Check = (read) => {
  const path = "rllm.gateway.db_path";
  if (!isSet(read, path) || read("rllm.gateway.store") === "sqlite") return undefined;
  return error(
    path,
    `Cannot keep traces in ${path}=${shown(read(path))}: rllm.gateway.store=memory has no database. Set rllm.gateway.store=sqlite, or remove db_path.`,
  );
};

/** rLLM's default names, which mean none. */
const NONE = { "rllm.agent.name": "math_agent", "rllm.env.name": "custom", "rllm.workflow.use_workflow": false };

const inProcess: Check = (read) => {
  if (agentsOf(read).length === 0) return undefined;
  const other = Object.entries(NONE).find(([path, none]) => read(path) !== none)?.[0];
  if (other === undefined) return undefined;
  return error(
    "task.agent",
    `Cannot roll out in two ways: task.agent is an agent in another process, ${other}=${shown(read(other))} one in this process. Set one of the two.`,
  );
};

export const SERVICE_RULES: readonly Rule[] = [
  ...contradictions,
  addresses,
  tunnel,
  unread,
  unreadKeys,
  database,
  inProcess,
].map((check) => ({ backends: ["local", "tinker"], check }));
