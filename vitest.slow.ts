/**
 * Tests that take more than about seven seconds on two cores. `npm test` leaves them out, `npm run test:slow` runs them
 * alone, and CI runs both. Those of {@link NIGHTLY_TESTS} are run by `scripts/nightly` alone (`npm run test:nightly`).
 */

/** Long tests of single parts, which judge mutants too. */
export const LONG_TESTS: readonly string[] = [
  "test/engine/algorithm/advantage_fuzz_test.ts",
  "test/train/backend/golden_model_test.ts",
  "test/train/backend/on_policy_test.ts",
  "test/train/backend/plan_test.ts",
  "test/train/backend/tinker_test.ts",
  "test/engine/compute/matmul_fuzz_test.ts",
  "test/engine/compute/split_products_test.ts",
  "test/train/config/differential_test.ts",
  "test/train/config/fuzz_test.ts",
  "test/train/config/support_test.ts",
  "test/train/config/verl_trees_test.ts",
  "test/golden/long_runs_test.ts",
  "test/train/log/checkpoints_model_test.ts",
  "test/train/loop/dpo/dpo_test.ts",
  "test/train/loop/interruption_test.ts",
  "test/engine/model/files/chat_template_test.ts",
  "test/engine/model/generate/kept_rows_test.ts",
  "test/engine/model/generate/long_context_test.ts",
  "test/engine/model/generate/mixed_batch_test.ts",
  "test/engine/model/generate/prefill_test.ts",
  "test/engine/model/generate/speculation_test.ts",
  "test/engine/model/kernels/attention_test.ts",
  "test/engine/model/kernels/cache_test.ts",
  "test/engine/model/kernels/sample_tiled_test.ts",
  "test/engine/model/train/lora_gradient_test.ts",
  "test/train/run/model/checkpoint_shape_test.ts",
  "test/train/run/place/run_place_test.ts",
  "test/serve/tinker/server_model_test.ts",
];

/** Training runs, crash loops, whole commands, attacks, fuzzing. */
const WHOLE_RUNS: readonly string[] = [
  "test/engine/algorithm/loss_fuzz_test.ts",
  "test/attack/attack_test.ts",
  "test/attack/client_kill_test.ts",
  "test/attack/durability_test.ts",
  "test/attack/fuzz_servers_test.ts",
  "test/attack/fuzz_test.ts",
  "test/attack/kill_test.ts",
  "test/attack/page_test.ts",
  "test/train/backend/published_plan_test.ts",
  "test/chat/grammar/differential_fuzz_test.ts",
  "test/chat/grammar/random_schemas_test.ts",
  "test/cli/critic_test.ts",
  "test/cli/examples_test.ts",
  "test/cli/learning_test.ts",
  "test/cli/recipes_test.ts",
  "test/cli/remote_agent_test.ts",
  "test/cli/row_tinker_test.ts",
  "test/cli/serve_rewards_test.ts",
  "test/cli/signals_test.ts",
  "test/cli/tinker_agent_test.ts",
  "test/cli/tinker_test.ts",
  "test/cli/train_traces_test.ts",
  "test/consumer_test.ts",
  "test/docs_pages_test.ts",
  "test/examples/rl_loop_test.ts",
  "test/serve/gateway/trace_page_test.ts",
  "test/train/loop/crash_test.ts",
  "test/train/loop/device_lost_test.ts",
  "test/train/loop/sft/pytorch_test.ts",
  "test/engine/model/batch_invariance_test.ts",
  "test/engine/model/families_test.ts",
  "test/engine/model/generate/cache_pool_test.ts",
  "test/engine/model/narrow_binding_test.ts",
  "test/engine/model/published_gguf_test.ts",
  "test/page/train/page_test.ts",
  "test/page/train/worker_session_test.ts",
  "test/train/run/cluster/cluster_test.ts",
  "test/train/run/cluster/trinity_cluster_test.ts",
  "test/train/run/task/judges_test.ts",
  "test/scripts/mutants_collection_test.ts",
];

/** Those of half a minute or more, which start first: one that starts last keeps a processor idle. */
export const LONGEST_TESTS: readonly string[] = [
  "test/engine/model/batch_invariance_test.ts",
  "test/train/loop/crash_test.ts",
  "test/engine/model/kernels/cache_test.ts",
  "test/engine/model/kernels/attention_test.ts",
  "test/cli/learning_test.ts",
  "test/cli/tinker_test.ts",
  "test/page/train/page_test.ts",
  "test/engine/model/generate/kept_rows_test.ts",
];

export const SLOW_TESTS: readonly string[] = [...LONG_TESTS, ...WHOLE_RUNS];

/** Runs that learn something step by step, servers under load, and matrix units, which no machine of ours has and tests emulate. */
export const NIGHTLY_TESTS: readonly string[] = [
  "test/attack/gateway_load_test.ts",
  "test/train/backend/stale_learning_test.ts",
  "test/cli/agents_learning_test.ts",
  "test/cli/distill_learning_test.ts",
  "test/cli/ppo_learning_test.ts",
  "test/cli/roles_learning_test.ts",
  "test/cli/tool_learning_test.ts",
  "test/engine/compute/matrix_check_test.ts",
  "test/engine/compute/subgroup_matrix_fuzz_test.ts",
  "test/engine/compute/subgroup_matrix_test.ts",
  "test/train/loop/load_test.ts",
  "test/engine/model/subgroup_matrix_test.ts",
  "test/serve/tinker/load_test.ts",
];
