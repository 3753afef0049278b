#include "common/plan/config/aliases.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/config/other_trainers.h"

namespace titan::config {
namespace {

constexpr KeyAlias kAliases[] = {
    // Spellings in articles.
    {"parallelism.hsdp_degree", "parallelism.data_parallel_shard_degree"},
    {"parallelism.replica_degree", "parallelism.data_parallel_replicate_degree"},
    {"parallelism.dp_degree", "parallelism.data_parallel_shard_degree"},
    {"parallelism.tp_degree", "parallelism.tensor_parallel_degree"},
    {"parallelism.pp_degree", "parallelism.pipeline_parallel_degree"},
    {"parallelism.cp_degree", "parallelism.context_parallel_degree"},
    {"parallelism.ep_degree", "parallelism.expert_parallel_degree"},
    {"parallelism.sharding_strategy", "parallelism.fsdp_reshard_after_forward", ValueConversion::kSharding},
    {"training.hsdp_degree", "parallelism.data_parallel_shard_degree"},
    {"training.replica_degree", "parallelism.data_parallel_replicate_degree"},
    {"training.dp_degree", "parallelism.data_parallel_shard_degree"},
    {"training.tp_degree", "parallelism.tensor_parallel_degree"},
    {"training.pp_degree", "parallelism.pipeline_parallel_degree"},
    {"training.cp_degree", "parallelism.context_parallel_degree"},
    {"training.sharding_strategy", "parallelism.fsdp_reshard_after_forward", ValueConversion::kSharding},
    {"training.max_seq_len", "training.seq_len"},
    {"model.max_seq_len", "training.seq_len"},
    {"training.batch_size", "training.local_batch_size"},
    {"validation.batch_size", "validation.local_batch_size"},
    {"validation.max_seq_len", "validation.seq_len"},
    {"parallelism.dp_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"parallelism.dp_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"parallelism.dp_shard", "parallelism.data_parallel_shard_degree"},
    {"parallelism.dp_replicate", "parallelism.data_parallel_replicate_degree"},
    {"parallelism.fsdp_degree", "parallelism.data_parallel_shard_degree"},
    {"parallelism.tp", "parallelism.tensor_parallel_degree"},
    {"parallelism.pp", "parallelism.pipeline_parallel_degree"},
    {"parallelism.cp", "parallelism.context_parallel_degree"},
    {"parallelism.ep", "parallelism.expert_parallel_degree"},
    {"parallelism.pp_schedule", "parallelism.pipeline_parallel_schedule"},
    {"parallelism.pipeline_schedule", "parallelism.pipeline_parallel_schedule"},
    {"parallelism.sequence_parallel", "parallelism.enable_sequence_parallel"},
    {"parallelism.enable_loss_parallel", "parallelism.disable_loss_parallel", ValueConversion::kNot},
    {"parallelism.cpu_offload", "training.enable_cpu_offload"},
    {"parallelism.enable_cpu_offload", "training.enable_cpu_offload"},
    {"training.micro_batch_size", "training.local_batch_size"},
    {"training.max_steps", "training.steps"},
    {"training.num_steps", "training.steps"},
    {"training.learning_rate", "optimizer.lr"},
    {"training.weight_decay", "optimizer.weight_decay"},
    {"training.max_grad_norm", "training.max_norm"},
    {"training.gradient_clipping", "training.max_norm"},
    {"training.grad_clip", "training.max_norm"},
    {"training.data_path", "training.dataset_path"},
    {"training.mixed_precision", "training.mixed_precision_param"},
    {"training.precision", "training.mixed_precision_param"},
    {"optimizer.warmup_steps", "lr_scheduler.warmup_steps"},
    {"lr_scheduler.type", "lr_scheduler.decay_type"},
    {"lr_scheduler.name", "lr_scheduler.decay_type"},
    {"model.size", "model.flavor"},
    {"checkpoint.enabled", "checkpoint.enable"},
    {"checkpoint.save_interval", "checkpoint.interval"},
    {"checkpoint.interval_steps", "checkpoint.interval"},
    {"checkpoint.keep_last_k", "checkpoint.keep_latest_k"},
    {"checkpoint.keep_last_n", "checkpoint.keep_latest_k"},
    {"checkpoint.load_path", "checkpoint.initial_load_path"},
    {"compile.enabled", "compile.enable"},
    {"metrics.log_interval", "metrics.log_freq"},
    {"validation.interval", "validation.freq"},
    {"optimizer.type", "optimizer.name"},
    {"optimizer.learning_rate", "optimizer.lr"},
    {"training.classifer_free_guidance_prob", "training.classifier_free_guidance_prob"},  // torchtitan's misspelling.
    {"validation.enable_classifer_free_guidance", "validation.enable_classifier_free_guidance"},
    {"training.max_images_per_batch", "data.max_images_per_batch"},
    {"training.max_patches_per_image", "data.max_patches_per_image"},
    {"training.packing_buffer_size", "data.packing_buffer_size"},
    {"training.patch_size", "data.patch_size"},
    {"training.spatial_merge_size", "data.spatial_merge_size"},
    // Before [parallelism] existed, degrees were in [training] and [experimental].
    {"training.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
    {"parallelism.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
    {"training.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
    {"training.context_parallel_degree", "parallelism.context_parallel_degree"},
    {"training.fsdp_reshard_after_forward", "parallelism.fsdp_reshard_after_forward"},
    {"training.disable_loss_parallel", "parallelism.disable_loss_parallel"},
    {"training.enable_loss_parallel", "parallelism.disable_loss_parallel", ValueConversion::kNot},
    {"training.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"experimental.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
    {"experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule"},
    {"experimental.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_schedule_csv"},
    {"experimental.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_layers_per_stage"},
    {"experimental.pipeline_parallel_microbatch_size", "parallelism.pipeline_parallel_microbatch_size"},
    {"experimental.context_parallel_degree", "parallelism.context_parallel_degree"},
    {"experimental.context_parallel_rotate_method", "parallelism.context_parallel_rotate_method"},
    // Other sections of older versions.
    {"training.sequence_parallel_degree", "parallelism.tensor_parallel_degree"},
    {"training.checkpoint_interval", "checkpoint.interval"},
    {"training.checkpoint_folder", "checkpoint.folder"},
    {"training.enable_fp8_linear", "model.converters", ValueConversion::kFloat8Converter},
    {"training.enable_fsdp_fp8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather"},
    {"training.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather"},
    {"training.precompute_float8_dynamic_scale_for_fsdp",
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"},
    {"profiling.run_profiler", "profiling.enable_profiling"},
    {"profiling.enable", "profiling.enable_profiling"},
    {"profiling.enabled", "profiling.enable_profiling"},
    {"profiling.freq", "profiling.profile_freq"},
    {"metrics.freq", "metrics.log_freq"},
    {"checkpoint.freq", "checkpoint.interval"},
    {"job.print_args", "job.print_config"},
    {"training.compile", "compile.enable"},
    {"training.warmup_steps", "lr_scheduler.warmup_steps"},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"},
    {"training.seed", "debug.seed"},
    {"training.deterministic", "debug.deterministic"},
    {"training.deterministic_warn_only", "debug.deterministic_warn_only"},
    {"optimizer.fused", "optimizer.implementation", ValueConversion::kFused},
    {"optimizer.early_step_in_bwd", "optimizer.early_step_in_backward"},
    {"model.tokenizer_path", "model.hf_assets_path", ValueConversion::kFolder},
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"},
    {"metrics.enable_color_printing", "metrics.disable_color_printing", ValueConversion::kNot},
    {"metrics.rank_0_only", "metrics.save_for_all_ranks", ValueConversion::kNot},
    {"validation.enabled", "validation.enable"},
    {"memory_estimation.enabled", "memory_estimation.enable"},
    {"training.enable_float8_linear", "model.converters", ValueConversion::kFloat8Converter},
    {"float8.enable_float8_linear", "model.converters", ValueConversion::kFloat8Converter},
    {"float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather"},
    {"float8.precompute_float8_dynamic_scale_for_fsdp",
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"},
    {"float8.recipe_name", "quantize.linear.float8.recipe_name"},
    {"float8.filter_fqns", "quantize.linear.float8.filter_fqns"},
    {"float8.emulate", "quantize.linear.float8.emulate"},
    {"float8.module_filter_fqns", "quantize.linear.float8.filter_fqns"},
    {"float8.moe_fqns", "quantize.grouped_mm.float8.fqns"},
    {"float8.moe_fqns_prototype", "quantize.grouped_mm.float8.fqns"},
    {"quantize.moe.float8.fqns", "quantize.grouped_mm.float8.fqns"},
    {"quantize.moe.mx.fqns", "quantize.grouped_mm.mx.fqns"},
    {"mx.moe_fqns", "quantize.grouped_mm.mx.fqns"},
    {"mx.moe.fqns", "quantize.grouped_mm.mx.fqns"},
    {"mx.dense.recipe_name", "quantize.linear.mx.recipe_name"},
    {"mx.dense.filter_fqns", "quantize.linear.mx.filter_fqns"},
    {"mx.mxfp8_dim1_cast_kernel_choice", "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"},
    {"mx.recipe_name", "quantize.linear.mx.recipe_name"},
    {"mx.filter_fqns", "quantize.linear.mx.filter_fqns"},
    {"mx.moe_fqns_prototype", "quantize.grouped_mm.mx.fqns"},
};

struct ValueAlias {
  std::string_view key;
  std::string_view spelling;
  std::string_view value;
};

constexpr ValueAlias kValueAliases[] = {
    {"model.converters", "float8", "quantize.linear.float8"},
    {"model.converters", "mx", "quantize.linear.mx"},
    {"model.converters", "quantize.moe.float8", "quantize.grouped_mm.float8"},
    {"model.converters", "quantize.moe.mx", "quantize.grouped_mm.mx"},
    {"training.dataset", "c4_mini", "c4_test"},
    {"training.dataset", "allenai/c4", "c4"},
    {"parallelism.fsdp_reshard_after_forward", "true", "always"},
    {"parallelism.fsdp_reshard_after_forward", "false", "never"},
    {"checkpoint.exclude_from_loading", "optim", "optimizer"},
    {"optimizer.implementation", "fused_opt_states_bf16", "fused"},
};

// A value that sets two things in another version: the second one, as a separate key.
struct ImpliedValue {
  std::string_view key;
  std::string_view spelling;
  std::string_view other_key;
  std::string_view value;
};

constexpr ImpliedValue kImpliedValues[] = {
    {"optimizer.implementation", "fused_opt_states_bf16", "optimizer.state_dtype", "bfloat16"},
};

struct Note {
  std::string_view key;  // A whole section when it ends with a dot.
  std::string_view text;
};

constexpr std::string_view kTokens =
    "batches are counted in sequences here: set training.local_batch_size and training.seq_len";
constexpr std::string_view kNewer = "it belongs to a torchtitan version after 0.2.2";

constexpr std::string_view kRecompute =
    "set activation_checkpoint.mode = \"full\", \"selective\", \"memory_budget\" or \"none\"";
constexpr std::string_view kDynamic = "scales are computed in each step (dynamic); delayed scaling is not supported";
constexpr std::string_view kFloat8 =
    "set model.converters = [\"quantize.linear.float8\"], with its keys in [quantize.linear.float8]";
constexpr std::string_view kPasses = "it chooses passes of PyTorch's compiler, which is not used here: leave it out";
constexpr std::string_view kSplits =
    "set parallelism.pipeline_parallel_layers_per_stage or parallelism.module_fqns_per_model_part";
constexpr std::string_view kAsync = "set checkpoint.async_mode = \"async\" or \"async_with_pinned_mem\"";
constexpr std::string_view kSharding =
    "set parallelism.data_parallel_shard_degree (sharded), parallelism.data_parallel_replicate_degree (copies) and "
    "parallelism.fsdp_reshard_after_forward (\"always\" as ZeRO 3, \"never\" as ZeRO 2)";
constexpr std::string_view kDegrees =
    "write [parallelism]: data_parallel_shard_degree, data_parallel_replicate_degree, tensor_parallel_degree, "
    "pipeline_parallel_degree, context_parallel_degree, expert_parallel_degree";

constexpr Note kUnknown[] = {
    {"training.guidance", "this flux has no embedding of the guidance scale: leave it out"},
    {"parallelism.pipeline_parallel_split_points", kSplits},
    {"experimental.pipeline_parallel_split_points", kSplits},
    {"training.pipeline_parallel_split_points", kSplits},
    {"checkpoint.interval_type", "checkpoint.interval counts steps"},
    {"training.num_tokens_per_microbatch_per_dp_rank", kTokens},
    {"training.num_tokens_per_train_step", kTokens},
    {"training.disable_cuda_graphs", kNewer},
    {"training.num_workers", "each rank reads batches ahead in a thread: set training.dataloader.prefetch"},
    {"training.fp8_linear", kFloat8},
    {"training.float8_linear", kFloat8},
    {"float8.enable", kFloat8},
    {"mx.enable", "set model.converters = [\"quantize.linear.mx\"], with its keys in [quantize.linear.mx]"},
    {"mx.use_fp8_dim1_cast_triton_kernel", "set quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"},
    {"training.float8_scaling_type_input", kDynamic},
    {"training.float8_scaling_type_weight", kDynamic},
    {"training.float8_scaling_type_grad_output", kDynamic},
    {"float8.enable_amax_init", kDynamic},
    {"compile.mode", "leave it out: compile.enable, compile.components and compile.graphs select what is compiled"},
    {"compile.passes", kPasses},
    {"compile.joint_passes", kPasses},
    {"compile.memory_policy", kNewer},
    {"compile.precompile_artifact_dir", kNewer},
    {"experimental.enable_simplefsdp_passes", kPasses},
    {"experimental.reorder_for_compute_comm_overlap", kPasses},
    {"experimental.torch_compile", "set compile.enable"},
    {"experimental.torch_spmd", kDegrees},
    {"experimental.auto_partition", kDegrees},
    {"experimental.offload_activations", kRecompute},
    {"debug.batch_invariant", kNewer},
    {"debug.enable_structured_logging", kNewer},
    {"parallelism.full_dtensor", kNewer},
    {"model.init_weights", "weights are always initialised, unless checkpoint.initial_load_path names weights to load"},
    {"training.enable_selective_ac", kRecompute},
    {"training.activation_checkpointing", kRecompute},
    {"training.gradient_checkpointing", kRecompute},
    {"training.selective_ac_option", "set activation_checkpoint.selective_ac_option"},
    {"training.checkpoint_interval_type", "checkpoint.interval counts steps"},
    {"activation_checkpoint.enable", kRecompute},
    {"activation_checkpoint.enabled", kRecompute},
    {"float8.scaling_type_input", kDynamic},
    {"float8.scaling_type_weight", kDynamic},
    {"float8.scaling_type_grad_output", kDynamic},
    {"optimizer.foreach", "set optimizer.implementation = \"foreach\""},
    {"checkpoint.async", kAsync},
    {"checkpoint.async_save", kAsync},
    {"checkpoint.enable_async", kAsync},
    {"parallelism.zero_stage", kSharding},
    {"parallelism.fsdp_sharding_strategy", kSharding},
    {"parallelism.enable_fsdp", kSharding},
    {"parallelism.use_fsdp", kSharding},
    {"parallelism.enable_ddp", kSharding},
    {"fsdp.", kSharding},
    {"distributed.", kDegrees},
    {"parallel.", kDegrees},
    {"mesh.", kDegrees},
    {"data.",
     "data belongs to [training]: training.dataset, training.dataset_path, and [training.dataloader]; [data] has "
     "max_images_per_batch, max_patches_per_image, patch_size, spatial_merge_size and packing_buffer_size, for vlm and "
     "qwen3_vl"},
    {"dataset.", "data belongs to [training]: training.dataset, training.dataset_path, and [training.dataloader]"},
    {"dataloader.dataset", "set training.dataset"},
    {"dataloader.dataset_path", "set training.dataset_path"},
    {"dataloader.", "write [training.dataloader]"},
    {"scheduler.", "write [lr_scheduler] for the learning rate, [scheduling] for the job's place in the queue"},
    {"fp8.", kFloat8},
    {"logging.", "write [metrics]"},
    {"tokenizer.", "set model.hf_assets_path to the folder of the tokenizer"},
    {"metrics.wandb_project", "set the environment variable WANDB_PROJECT of the program that sends metrics.jsonl"},
    {"experimental.custom_model_path", "it is Python; a library of models is experimental.custom_import"},
    {"parallelism.spmd_backend", kNewer},
    {"parallelism.enable_fsdp_symm_mem", kNewer},
    {"parallelism.num_pp_microbatches",
     "set parallelism.pipeline_parallel_microbatch_size, in sequences per microbatch"},
    {"training.dataloader.sources.", "sources are a list: write [[training.dataloader.sources]], once for each"},
    {"validation.dataloader.sources.", "sources are a list: write [[validation.dataloader.sources]], once for each"},
    {"optimizer.param_groups.", "groups are a list: write [[optimizer.param_groups]], once for each"},
    {"model.norm_type", "the only norm is rmsnorm: leave it out"},
    {"model.use_flex_attn", "the attention variant belongs to the model's flavor, such as debugmodel_flex_attn"},
    {"parallelism.enable_compiled_autograd", "there is no autograd compiler here"},
    {"experimental.enable_compiled_autograd", "there is no autograd compiler here"},
};

struct IgnoredKey {
  std::string_view key;
  std::optional<std::string_view> value;  // The only value that may be ignored; nothing: any value.
  std::string_view reason;
};

constexpr std::string_view kNoFloat8Weights = "float8 weights are never kept for the backward pass";
constexpr std::string_view kEachStep = "scales are always computed in each step";

constexpr std::string_view kOwnKeys = "Titan has this module's keys";
constexpr std::string_view kFluxModule = "torchtitan.models.flux.job_config";
constexpr std::string_view kOlderFluxModule = "torchtitan.experiments.flux.job_config";
constexpr std::string_view kVlmModule = "torchtitan.experiments.vlm.job_config";
constexpr std::string_view kOlderVlmModule = "torchtitan.experiments.vlm.assets.job_config";

constexpr IgnoredKey kIgnoredKeys[] = {
    {"job.custom_config_module", kFluxModule, kOwnKeys},
    {"job.custom_config_module", kOlderFluxModule, kOwnKeys},
    {"job.custom_config_module", kVlmModule, kOwnKeys},
    {"experimental.custom_args_module", kOlderFluxModule, kOwnKeys},
    {"experimental.custom_args_module", kOlderVlmModule, kOwnKeys},
    {"job.use_for_integration_test", std::nullopt, "it selected torchtitan's own tests"},
    {"metrics.use_for_integration_test", std::nullopt, "it selected torchtitan's own tests"},
    {"float8.force_recompute_fp8_weight_in_bwd", std::nullopt, kNoFloat8Weights},
    {"quantize.linear.float8.force_recompute_fp8_weight_in_bwd", std::nullopt, kNoFloat8Weights},
    {"float8.pad_inner_dim", std::nullopt, "matrix products of any size are supported"},
    {"training.fp8_linear", "", "it is off"},
    {"training.fp8_linear", "false", "it is off"},
    {"training.enable_selective_ac", "false", "it is off"},
    {"training.float8_scaling_type_input", "dynamic", kEachStep},
    {"training.float8_scaling_type_weight", "dynamic", kEachStep},
    {"training.float8_scaling_type_grad_output", "dynamic", kEachStep},
    {"model.init_weights", "true", "weights are always initialised"},
    {"model.norm_type", "rmsnorm", "it is the only norm"},
    {"model.norm_type", "fused_rmsnorm", "it is the same norm; its kernel is chosen automatically"},
    {"model.norm_type", "compiled_rmsnorm", "it is the same norm; its kernel is chosen automatically"},
    {"float8.scaling_type_input", "dynamic", kEachStep},
    {"float8.scaling_type_weight", "dynamic", kEachStep},
    {"float8.scaling_type_grad_output", "dynamic", kEachStep},
    {"training.checkpoint_interval_type", "steps", "checkpoint.interval counts steps"},
    {"model.use_flex_attn", "false", "the attention variant belongs to the model's flavor"},
    {"checkpoint.interval_type", "steps", "checkpoint.interval counts steps"},
    {"parallelism.enable_compiled_autograd", "false", "there is no autograd compiler here"},
    {"experimental.enable_compiled_autograd", "false", "there is no autograd compiler here"},
    {"parallelism.pipeline_parallel_split_points", "[]", "the stages follow from the number of layers"},
    {"experimental.pipeline_parallel_split_points", "[]", "the stages follow from the number of layers"},
};

std::optional<bool> truth(const RawValue& value) {
  if (value.kind == RawValue::Kind::kBool) return value.boolean;
  if (value.kind == RawValue::Kind::kWord && absl::AsciiStrToLower(value.text) == "true") return true;
  if (value.kind == RawValue::Kind::kWord && absl::AsciiStrToLower(value.text) == "false") return false;
  return std::nullopt;
}

std::optional<FieldError> turn_sharding(RawValue& value) {
  const ShardingStrategy* strategy = find_sharding_strategy(value.text);
  if (strategy == nullptr) {
    return FieldError{"is not one of PyTorch's FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, NO_SHARD",
                      "set parallelism.fsdp_reshard_after_forward and the data_parallel degrees instead"};
  }
  value.text = strategy->reshard_after_forward;
  return std::nullopt;
}

}  // namespace

const KeyAlias* find_alias(std::string_view spelling) {
  for (const KeyAlias& alias : kAliases) {
    if (alias.spelling == spelling) return &alias;
  }
  return nullptr;
}

std::optional<FieldError> convert_value(ValueConversion conversion, RawValue& value) {
  const int line = value.line;
  const std::optional<bool> boolean = truth(value);
  const bool needs_boolean = conversion == ValueConversion::kNot || conversion == ValueConversion::kFused ||
                             conversion == ValueConversion::kFloat8Converter;
  if (needs_boolean && !boolean) return FieldError{"expects true or false", ""};
  switch (conversion) {
    case ValueConversion::kSame:
      break;
    case ValueConversion::kNot:
      value = raw_bool(!*boolean);
      break;
    case ValueConversion::kFolder:
      for (const char* file : {"/tokenizer.json", "/original/tokenizer.model", "/tokenizer.model"}) {
        if (absl::EndsWith(value.text, file)) {
          value.text.resize(value.text.size() - std::string_view(file).size());
          break;
        }
      }
      break;
    case ValueConversion::kFused:
      value = raw_string(*boolean ? "fused" : "foreach");
      break;
    case ValueConversion::kFloat8Converter:
      value = raw_string(*boolean ? "quantize.linear.float8" : "");
      break;
    case ValueConversion::kSharding:
      if (std::optional<FieldError> bad = turn_sharding(value)) return bad;
      break;
  }
  value.line = line;
  return std::nullopt;
}

void replace_value_aliases(std::string_view key, RawValue& value) {
  if (value.kind == RawValue::Kind::kList) {
    for (RawValue& item : value.items) replace_value_aliases(key, item);
    return;
  }
  for (const ValueAlias& alias : kValueAliases) {
    if (alias.key != key) continue;
    if (value.kind == RawValue::Kind::kBool) {
      if (display(value) != alias.spelling) continue;
      const int line = value.line;
      value = raw_string(std::string(alias.value));
      value.line = line;
      return;
    }
    std::string replaced;
    for (std::size_t start = 0; start <= value.text.size();) {
      const std::size_t end = std::min(value.text.find(',', start), value.text.size());
      const std::string_view piece = std::string_view(value.text).substr(start, end - start);
      if (start > 0) replaced += ',';
      replaced += piece == alias.spelling ? alias.value : piece;
      start = end + 1;
    }
    value.text = replaced;
  }
}

std::optional<Implied> implied_by(std::string_view key, const RawValue& value) {
  for (const ImpliedValue& second : kImpliedValues) {
    if (second.key == key && second.spelling == value.text) return Implied{second.other_key, second.value};
  }
  return std::nullopt;
}

std::string_view explain_unknown(std::string_view key) {
  for (const Note& note : kUnknown) {
    if (note.key == key || (note.key.back() == '.' && key.substr(0, note.key.size()) == note.key)) return note.text;
  }
  return {};
}

std::string_view explain_without_effect(std::string_view key, const RawValue& value) {
  for (const IgnoredKey& spent : kIgnoredKeys) {
    if (spent.key != key) continue;
    const bool is_text = value.kind == RawValue::Kind::kString || value.kind == RawValue::Kind::kWord;
    if (!spent.value || *spent.value == (is_text ? value.text : display(value))) return spent.reason;
  }
  return {};
}

}  // namespace titan::config
