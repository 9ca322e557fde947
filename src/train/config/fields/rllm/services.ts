/**
 * Portable settings of the services around a run: the gateway that agents in other processes call (`task.agent`), and the
 * trace store. `rllm.sdk` (the published guide) and `rllm.gateway` (the current source) are two generations of the same
 * settings: run/gateway/gateway_settings.ts says which wins, rules/services.ts refuses those that contradict each other.
 */
import { bool, dict, each, float, int, oneOf, str } from "../field.ts";

export const NO_REMOTE = "remote sandboxes are a Python service; task.agent asks an agent in any container by HTTP";
const REFUSED = "refused refused refused refused";
const TRINITY = { trinity: "Trinity serves its explorer's models itself (explorer.rollout_model.enable_openai_api)" };

const SDK = each(
  { why: TRINITY },
  {
    "rllm.sdk.store.path": str(
      "~/.rllm/traces.db",
      "trace database: every model call of the run's agents, with its tokens",
      {
        note: "Another path than the default records; rllm.gateway.store=sqlite records to the default too.",
      },
    ),
    "rllm.sdk.processing.groupby_key": str(null, "metadata key of a model call that groups calls into trajectories", {
      note: "Calls of one name with different values are different trajectories, for instance two solvers.",
    }),
    "rllm.sdk.processing.traj_name_key": str(null, "metadata key of a model call that names its trajectory (its role)"),
    "rllm.sdk.proxy.host": str("127.0.0.1", "address of the gateway that the agents of task.agent call"),
    "rllm.sdk.proxy.port": int(4000, "port of the gateway; 0 = a free one", { min: 0, max: 65535 }),
    "rllm.sdk.proxy.mode": oneOf(
      ["subprocess", "external"],
      "subprocess",
      "the trainer starts the gateway, or you do",
      {
        note: "subprocess starts it inside the trainer's own process, because the weights are there. external registers the trainer as a worker of the gateway that runs at host and port.",
      },
    ),
    "rllm.sdk.proxy.admin_token": str(
      "my-shared-secret",
      "token for the gateway's admin routes, which agents do not get",
      {
        secret: true,
        note: "The published default is refused for a gateway that other machines can reach.",
      },
    ),
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
  { why: TRINITY },
  {
    "rllm.gateway.port": int(9090, "another name of rllm.sdk.proxy.port; 9090 = use that", { min: 0, max: 65535 }),
    "rllm.gateway.host": str(null, "another name of rllm.sdk.proxy.host; null = use that", {
      note: "0.0.0.0 listens on all addresses and gives agents this machine's first one that others can reach.",
    }),
    "rllm.gateway.tunnel": str(null, "base URL under which agents reach the gateway, for instance of a tunnel", {
      note: "Start the tunnel yourself and give its URL: grpu starts no tunnel program.",
    }),
    "rllm.gateway.store": oneOf(["memory", "sqlite"], "memory", "where traces are kept", {
      note: "memory keeps the newest sessions of agents in other processes until the run ends; sqlite records every attempt.",
    }),
    "rllm.gateway.db_path": str(null, "database of the sqlite store; null = rllm.sdk.store.path"),
    "rllm.gateway.cumulative_token_mode": bool(false, "later turns continue the tokens of earlier ones", {
      on: "logging logging logging dropped",
      why: {
        ...TRINITY,
        local: "they always do: true asks for what happens anyway",
        tinker: "they always do: true asks for what happens anyway",
        verl: "they always do: true asks for what happens anyway",
      },
    }),
    "rllm.gateway.renderer_family": str("auto", "renderer that bridges turns", {
      on: REFUSED,
      why: {
        local: "the model's own chat template renders every turn",
        tinker: "the model's own chat template renders every turn",
        verl: "the model's own chat template renders every turn",
      },
    }),
  },
);

export const SERVICE_FIELDS = { ...SDK, ...REMOTE_RUNTIME, ...GATEWAY } as const;
