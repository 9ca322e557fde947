/** Portable settings of the data and of what rolls out: agents, games, workflows, sampling. */
import { bool, dict, each, float, int, open, str } from "../field.ts";
import { NO_REMOTE } from "./services.ts";

const FUNCTIONS = "rollouts are functions of this process: built in, or registered with --import";
/** verl and Trinity form batches, filter and group by themselves. */
const OWN_BATCHES = "verl's trainer forms its own batches";
const MAX_TIMEOUT = { trinity: "Trinity has explorer.max_timeout" };

const DATA = {
  "rllm.data.train_batch_size": int(64, "prompts per training step", {
    min: 1,
    loop: true,
    verl: "data.train_batch_size",
    why: { trinity: "as buffer.batch_size x synchronizer.sync_interval" },
  }),
  "rllm.data.val_batch_size": int(-1, "prompts per validation batch; -1 = the whole validation set", {
    min: -1,
    loop: true,
    on: "acts acts logging dropped",
    why: { verl: "verl validates in one batch", trinity: "Trinity has one batch size" },
  }),
  "rllm.data.max_prompt_length": int(2048, "longest prompt, in tokens", {
    min: 1,
    loop: true,
    verl: "data.max_prompt_length",
  }),
  "rllm.data.max_response_length": int(30720, "longest response, in tokens", {
    min: 1,
    verl: "data.max_response_length",
  }),
  "rllm.data.seed": int(0, "seed of the data order", {
    min: 0,
    loop: true,
    why: { verl: "as data.seed of the job", trinity: "Trinity seeds each taskset (data_selector.seed)" },
  }),
} as const;

const AGENT = {
  "rllm.agent.name": str("math_agent", "name of the agent", {
    note: "A name registered with registerAgent. The default means no agent: the task's own rollout runs.",
    why: FUNCTIONS,
  }),
  "rllm.agent.max_steps": int(20, "maximum steps in one trajectory", { min: 1 }),
  "rllm.agent.trajectory_timeout": int(null, "seconds one trajectory may take; null = no limit", {
    min: 1,
    why: MAX_TIMEOUT,
  }),
  "rllm.agent.overlong_filter": bool(false, "leave out trajectories that ran over the length limit", {
    loop: true,
    on: "acts acts refused refused",
    why: { verl: OWN_BATCHES },
  }),
  "rllm.agent.agent_args": dict("further arguments of the agent"),
  "rllm.agent.engine_args": dict("further arguments of the engine that runs it", {
    on: "refused refused refused refused",
    why: "the engine is this loop, set by rllm.workflow",
  }),

  "rllm.env.name": str("custom", "name of the environment", {
    note: "A registered environment whose game is played. The default means that of task.name.",
  }),
  "rllm.env.env_args": dict("further arguments of the environment"),
} as const;

const WORKFLOW = {
  "rllm.workflow.use_workflow": bool(false, "train on a workflow instead of an agent"),
  "rllm.workflow.name": str("single_turn_workflow", "name of the workflow", {
    note: "single_turn_workflow, multi_turn_workflow, cumulative_workflow, solver_judge_workflow, or a registered one.",
    why: FUNCTIONS,
  }),
  "rllm.workflow.workflow_args.agent_cls": str(null, "agent class inside the workflow", { why: FUNCTIONS }),
  "rllm.workflow.workflow_args.agent_args": dict("arguments of that agent"),
  "rllm.workflow.workflow_args.env_cls": str(null, "environment class inside the workflow", {
    why: FUNCTIONS,
  }),
  "rllm.workflow.workflow_args.env_args": dict("arguments of that environment"),
  "rllm.workflow.workflow_args.timeout": float(1e6, "seconds one workflow may take", {
    min: 0,
    loop: true,
    why: MAX_TIMEOUT,
  }),
  "rllm.workflow.workflow_args.gamma": float(0, "discount per step; 0 = rewards are not discounted", {
    min: 0,
    max: 1,
    loop: true,
  }),
  "rllm.workflow.workflow_args.reward_bonus_coeff": float(0, "weight of the reward gained since the last step", {
    loop: true,
  }),
  "rllm.workflow.workflow_args.*": open("further arguments of the workflow"),
  "rllm.workflow.n_parallel_tasks": int(256, "rollouts that run at the same time", {
    min: 1,
    loop: true,
    why: { trinity: "Trinity has explorer.runner_per_model" },
  }),
  "rllm.workflow.retry_limit": int(3, "attempts per rollout", {
    min: 1,
    loop: true,
    note: "Counts attempts: 3 means one try and two retries.",
    why: { trinity: "Trinity has explorer.max_retry_times" },
  }),
  "rllm.workflow.raise_on_error": bool(true, "stop the run when a rollout fails for good", {
    loop: true,
    note: "Asynchronous training needs false.",
  }),
  "rllm.workflow.warm_queue_size": int(-1, "prepared sandboxes; 0 = none, below 0 = one per parallel rollout", {
    min: -1,
    on: "refused refused refused refused",
    why: NO_REMOTE,
  }),
} as const;

const MORE_SAMPLING = "others, such as stop and seed, are refused";
const ALONE = "rollouts take temperature, top_p, top_k and max_tokens alone";
const NO_MORE = {
  on: "refused refused refused refused",
  why: { local: ALONE, tinker: ALONE, verl: ALONE, trinity: ALONE },
} as const;
// biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of ours
const RESPONSE_LENGTH = "${rllm.data.max_response_length}";
/** `max_tokens` of a program without a configuration. */
const MAX_TOKENS = { default: 256 } as const;
const ROLLOUT = "actor_rollout_ref.rollout";

const SAMPLING = {
  "rllm.rollout.n": int(8, "rollouts per prompt in training (the group size)", {
    min: 1,
    loop: true,
    verl: `${ROLLOUT}.n`,
  }),
  "rllm.rollout.n_val": int(1, "rollouts per prompt in validation", {
    min: 1,
    loop: true,
    verl: `${ROLLOUT}.val_kwargs.n`,
  }),
  "rllm.rollout.train.temperature": float(1, "temperature for training rollouts", {
    min: 0,
    loop: true,
    verl: `${ROLLOUT}.temperature`,
  }),
  "rllm.rollout.train.top_p": float(1, "nucleus threshold for training rollouts", {
    min: 0,
    max: 1,
    loop: true,
    verl: `${ROLLOUT}.top_p`,
  }),
  "rllm.rollout.train.top_k": int(-1, "top-k for training rollouts; -1 = off", {
    min: -1,
    optional: true,
    loop: true,
    verl: `${ROLLOUT}.top_k`,
  }),
  "rllm.rollout.train.max_tokens": int(RESPONSE_LENGTH, "maximum new tokens for training rollouts", {
    min: 1,
    loop: MAX_TOKENS,
    verl: `${ROLLOUT}.response_length`,
  }),
  "rllm.rollout.train.*": open(MORE_SAMPLING, NO_MORE),
  ...each(
    { why: { trinity: "of each eval_taskset" } },
    {
      "rllm.rollout.val.temperature": float(1, "temperature for validation rollouts", {
        min: 0,
        loop: true,
        verl: `${ROLLOUT}.val_kwargs.temperature`,
      }),
      "rllm.rollout.val.top_p": float(1, "nucleus threshold for validation rollouts", {
        min: 0,
        max: 1,
        loop: true,
        verl: `${ROLLOUT}.val_kwargs.top_p`,
      }),
      "rllm.rollout.val.top_k": int(-1, "top-k for validation rollouts; -1 = off", {
        min: -1,
        optional: true,
        loop: true,
        verl: `${ROLLOUT}.val_kwargs.top_k`,
      }),
      "rllm.rollout.val.max_tokens": int(RESPONSE_LENGTH, "maximum new tokens for validation rollouts", {
        min: 1,
        loop: MAX_TOKENS,
        on: "acts acts refused refused",
        why: { verl: "verl bounds validation like training", trinity: "Trinity bounds validation like training" },
      }),
    },
  ),
  "rllm.rollout.val.*": open(MORE_SAMPLING, NO_MORE),
} as const;

export const ROLLOUT_FIELDS = { ...DATA, ...AGENT, ...WORKFLOW, ...SAMPLING } as const;
