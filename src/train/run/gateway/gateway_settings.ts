/** The settings of a run's gateway and trace store, out of two generations of published names. */
import { homedir, networkInterfaces } from "node:os";
import { checkAuth } from "../../../serve/gateway/auth.ts";
import { SERVICE_FIELDS } from "../../config/fields/rllm/services.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { TrajectoryKeys } from "../../task/remote/contract.ts";
import type { Retention } from "../../trace/mod.ts";

export interface GatewaySettings {
  /** `task.agent`. Empty: rollouts run in this process, and no gateway starts. */
  readonly agents: readonly string[];
  readonly mode: "subprocess" | "external";
  readonly host: string;
  readonly port: number;
  /** Key of the gateway's admin routes; agents never get it. */
  readonly adminToken: string;
  /** Base URL under which agents reach the gateway; undefined: where it listens. */
  readonly tunnel: string | undefined;
  /** The file that traces are recorded to. Undefined: none; the gateway keeps the newest sessions in memory. */
  readonly store: string | undefined;
  /** Bounds of what the store keeps; undefined: everything in a file, the newest sessions in memory. */
  readonly retention: Retention | undefined;
  readonly keys: TrajectoryKeys;
}

/**
 * The effective settings. A name of `rllm.gateway` wins over that of `rllm.sdk` where it is not at its default; two that
 * contradict each other were refused when the configuration was composed (config/rules/services.ts).
 * @throws {ConfigError} for a gateway that other machines can reach with the published admin token
 */
export function gatewaySettings(config: Tree): GatewaySettings {
  const port = setting(config, "rllm.gateway.port");
  const settings: GatewaySettings = {
    agents: [setting(config, "task.agent") ?? []].flat(),
    mode: setting(config, "rllm.sdk.proxy.mode"),
    host: setting(config, "rllm.gateway.host") ?? setting(config, "rllm.sdk.proxy.host"),
    port: port === SERVICE_FIELDS["rllm.gateway.port"].default ? setting(config, "rllm.sdk.proxy.port") : port,
    adminToken: setting(config, "rllm.sdk.proxy.admin_token"),
    tunnel: setting(config, "rllm.gateway.tunnel")?.replace(/\/+$/, ""),
    store: traceStorePath(config),
    retention: retentionOf(config),
    keys: {
      name: setting(config, "rllm.sdk.processing.traj_name_key"),
      group: setting(config, "rllm.sdk.processing.groupby_key"),
    },
  };
  const isExposed = settings.tunnel !== undefined;
  if (settings.agents.length > 0 && settings.mode === "subprocess")
    checkAuth({ ...settings, isExposed }, settings.host);
  return settings;
}

function retentionOf(config: Tree): Retention | undefined {
  const limits = {
    max_age_s: setting(config, "task.trace_retention.max_age_s") ?? undefined,
    max_traces: setting(config, "task.trace_retention.max_traces") ?? undefined,
    max_bytes: setting(config, "task.trace_retention.max_bytes") ?? undefined,
  };
  return Object.values(limits).every((limit) => limit === undefined) ? undefined : limits;
}

/** The file that a run records its agents' calls to; undefined for none. */
export function traceStorePath(config: Tree): string | undefined {
  const sdk = setting(config, "rllm.sdk.store.path");
  const isFile =
    setting(config, "rllm.gateway.store") === "sqlite" || sdk !== SERVICE_FIELDS["rllm.sdk.store.path"].default;
  if (!isFile) return undefined;
  return (setting(config, "rllm.gateway.db_path") ?? sdk).replace(/^~(?=\/)/, () => homedir());
}

const ALL_ADDRESSES = ["0.0.0.0", "::"];

/** The base URL that agents get: the tunnel's, or the gateway's; of one on all addresses, the first that others can reach. */
export function publicUrl({ host, tunnel }: GatewaySettings, listening: string): string {
  if (tunnel !== undefined) return tunnel;
  if (!ALL_ADDRESSES.includes(host)) return listening;
  const addresses = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
  const found = addresses.find(({ family, internal }) => family === "IPv4" && !internal);
  return `http://${found?.address ?? "127.0.0.1"}:${new URL(listening).port}`;
}
