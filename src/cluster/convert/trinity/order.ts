/** Trinity's settings in the order of its documentation: for sorting output and finding unknown keys. */
const SECTIONS: Readonly<Record<string, string>> = {
  "": "mode project group name checkpoint_root_dir continue_from_checkpoint ignore_validator_suggestions algorithm data_processor model cluster buffer explorer synchronizer trainer monitor service log stages",
  algorithm:
    "algorithm_type repeat_times optimizer sample_strategy sample_strategy_args advantage_fn advantage_fn_args kl_penalty_fn kl_penalty_fn_args policy_loss_fn policy_loss_fn_args kl_loss_fn kl_loss_fn_args entropy_loss_fn entropy_loss_fn_args loss_agg_mode enable_router_replay bypass_old_logprobs rollout_correction",
  "algorithm.optimizer":
    "lr lr_warmup_steps lr_warmup_steps_ratio min_lr_ratio warmup_style lr_scheduler_type optimizer_type betas weight_decay clip_grad fused foreach",
  model:
    "model_path critic_model_path trust_remote_code custom_chat_template chat_template_path temperature top_p top_k logprobs max_model_len max_prompt_tokens max_response_tokens min_response_tokens enable_prompt_truncation repetition_penalty enable_thinking lora_configs fully_sharded_loras max_cpu_loras rope_scaling rope_theta tinker external_model",
  cluster: "ray_address node_num gpu_per_node",
  buffer: "total_epochs total_steps batch_size train_batch_size explorer_input trainer_input",
  "buffer.explorer_input":
    "taskset tasksets eval_tasksets default_workflow_type default_eval_workflow_type default_reward_fn_type",
  explorer:
    "name runner_per_model runner_prepare_concurrency runner_prepare_max_retries runner_num max_timeout max_retry_times env_vars concurrent_mode max_repeat_times_per_runner eval_interval eval_on_startup bench_on_latest_checkpoint rollout_model auxiliary_models proxy_port listen_address service_status_check_interval min_running_model_num db_url over_rollout dynamic_timeout runner_state_report_interval max_inflight_batches",
  synchronizer:
    "sync_method sync_style sync_offset sync_interval explorer_sync_interval trainer_sync_interval sync_timeout group_name wait_for_checkpoint",
  trainer:
    "name trainer_type trainer_strategy save_interval enable_preview total_steps save_hf_checkpoint grad_clip use_dynamic_bsz use_remove_padding balance_batch critic_warmup max_token_len_per_gpu ulysses_sequence_parallel_size fix_actor_microbatch_loss_scale param_offload optimizer_offload grad_offload offload_policy save_strategy max_checkpoints_to_keep megatron trainer_config",
  "trainer.trainer_config": "actor_rollout_ref critic trainer",
  "trainer.trainer_config.actor_rollout_ref": "model actor rollout ref",
  "trainer.trainer_config.critic": "model optim",
  monitor: "monitor_type monitor_args detailed_stats enable_ray_timeline",
};
const TASKSET =
  "name storage_type path subset_name split format repeat_times rollout_args default_workflow_type default_reward_fn_type workflow_args reward_fn_args task_selector data_selector max_retry_times max_retry_interval enable_progress_bar";
const FORMAT =
  "prompt_type prompt_key response_key system_prompt_key system_prompt messages_key tools_key image_key video_key reply_prefix workflow_key reward_fn_key chosen_key rejected_key enable_concatenated_multi_turn chat_template enable_thinking";
const ENGINE =
  "model_path name trust_remote_code engine_type engine_num tensor_parallel_size data_parallel_size pipeline_parallel_size enable_expert_parallel extra_engine_args use_v1 enforce_eager enable_prefix_caching enable_chunked_prefill gpu_memory_utilization dtype seed max_model_len max_prompt_tokens max_response_tokens min_response_tokens enable_prompt_truncation repetition_penalty ignore_eos chat_template enable_thinking enable_history enable_openai_api enable_log_requests base_port api_key enable_auto_tool_choice tool_call_parser reasoning_parser external_model_config enable_multimodal weight_sync_buffer_size";

const under = (path: string, names: string) => names.split(" ").map((name) => (path === "" ? name : `${path}.${name}`));
const TASKSETS = ["taskset", "tasksets[]", "eval_tasksets[]"].map((name) => `buffer.explorer_input.${name}`);

export const TRINITY_ORDER: readonly string[] = [
  ...Object.entries(SECTIONS).flatMap(([path, names]) => under(path, names)),
  ...TASKSETS.flatMap((path) => [
    ...under(path, TASKSET),
    ...under(`${path}.format`, FORMAT),
    ...under(`${path}.rollout_args`, "temperature top_p top_k logprobs max_tokens n"),
    ...under(`${path}.task_selector`, "selector_type seed feature_keys kwargs"),
    ...under(`${path}.data_selector`, "selector_type seed feature_keys kwargs"),
  ]),
  ...["explorer.rollout_model", "explorer.auxiliary_models[]"].flatMap((path) => under(path, ENGINE)),
  ...under(
    "model.lora_configs[]",
    "name path base_model_name lora_rank lora_alpha lora_dtype target_modules exclude_modules",
  ),
];

/** Sections whose inside is not listed here: free dictionaries, and parts that no conversion touches. */
const OPEN =
  /^(.*_args|trainer\.trainer_config|trainer\.megatron|model\.(tinker|external_model|rope_scaling)|buffer\.trainer_input|data_processor|service|log|stages(?:\[\])?|.*\.kwargs|.*external_model_config|.*extra_engine_args|explorer\.(env_vars|over_rollout|dynamic_timeout)|algorithm\.rollout_correction)(\.|$)/;

/** True when Trinity has such a setting. List indexes are ignored. */
export function isTrinityPath(path: string): boolean {
  const general = path.replace(/\.\d+(?=\.|$)/g, "[]");
  return KNOWN.has(general) || OPEN.test(general);
}

const KNOWN = new Set(TRINITY_ORDER);
