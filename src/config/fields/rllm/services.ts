/** Portable settings of rLLM's Python services. Nothing here starts one, so a value of one's own is refused. */
import { bool, dict, each, float, int, oneOf, str } from "../field.ts";

export const NO_REMOTE = "remote sandboxes are a Python service; rollouts run in this process";
const NO_SDK = "grpu starts no proxy; agents get a client from the loop, and grpu serve serves traces";
const REFUSED = "refused refused refused dropped";

const SDK = each(
  { on: REFUSED, why: NO_SDK },
  {
    "rllm.sdk.store.path": str("~/.rllm/traces.db", "trace database"),
    "rllm.sdk.processing.groupby_key": str(null, "metadata key that groups trajectories"),
    "rllm.sdk.processing.traj_name_key": str(null, "metadata key that names a trajectory"),
    "rllm.sdk.proxy.host": str("127.0.0.1", "host of the proxy"),
    "rllm.sdk.proxy.port": int(4000, "port of the proxy", { min: 0, max: 65535 }),
    "rllm.sdk.proxy.mode": oneOf(["subprocess", "external"], "subprocess", "started by the trainer, or by you"),
    "rllm.sdk.proxy.admin_token": str("my-shared-secret", "token for the proxy's admin calls", {
      secret: true,
    }),
  },
);

const REMOTE_RUNTIME = each(
  { on: REFUSED, why: NO_REMOTE },
  {
    "rllm.remote_runtime.enabled": bool(false, "run agents in a remote sandbox"),
    "rllm.remote_runtime.backend": str("agentcore", "which sandbox"),
    "rllm.remote_runtime.agentcore.agent_runtime_arn": str("", "runtime of the agent"),
    "rllm.remote_runtime.agentcore.s3_bucket": str("", "bucket for results"),
    "rllm.remote_runtime.agentcore.tps_limit": float(25, "calls per second", { min: 0 }),
    "rllm.remote_runtime.harbor.agent": str("mini-swe-agent", "agent that is run"),
    "rllm.remote_runtime.harbor.environment_type": str("docker", "kind of sandbox"),
    "rllm.remote_runtime.harbor.agent_kwargs": dict("arguments of the agent"),
    "rllm.remote_runtime.harbor.agent_timeout_multiplier": float(null, "factor on the agent's time limit", {
      min: 0,
    }),
    "rllm.remote_runtime.harbor.verifier_timeout_multiplier": float(null, "factor on the verifier's time limit", {
      min: 0,
    }),
    "rllm.remote_runtime.harbor.agent_setup_timeout_multiplier": float(null, "factor on the set-up's time limit", {
      min: 0,
    }),
    "rllm.remote_runtime.harbor.environment_build_timeout_multiplier": float(null, "factor on the build's time limit", {
      min: 0,
    }),
    "rllm.remote_runtime.session_timeout": float(300, "seconds one session may take", { min: 0 }),
  },
);

const GATEWAY = each(
  { on: REFUSED, why: NO_SDK },
  {
    "rllm.gateway.port": int(9090, "port of the model gateway", { min: 0, max: 65535 }),
    "rllm.gateway.host": str(null, "its host; null = an address that others can reach"),
    "rllm.gateway.tunnel": str(null, "tunnel that exposes it"),
    "rllm.gateway.store": oneOf(["memory", "sqlite"], "memory", "where traces are kept"),
    "rllm.gateway.db_path": str(null, "database of the sqlite store"),
    "rllm.gateway.cumulative_token_mode": bool(false, "later turns continue the tokens of earlier ones"),
    "rllm.gateway.renderer_family": str("auto", "renderer that bridges turns"),
  },
);

export const SERVICE_FIELDS = { ...SDK, ...REMOTE_RUNTIME, ...GATEWAY } as const;
