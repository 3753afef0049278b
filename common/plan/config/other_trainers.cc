#include "common/plan/config/other_trainers.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::config {
namespace {

struct Meaning {
  std::string_view says;   // Key to set, or whole advice if it does not begin with a key.
  std::string_view words;  // Separated by blanks.
};

constexpr std::string_view kShards =
    "parallelism.data_parallel_shard_degree (sharded) and parallelism.data_parallel_replicate_degree (copies)";

constexpr Meaning kMeanings[] = {
    // Optimizer and learning rate.
    {"optimizer.lr", "learning_rate base_lr max_lr peak_lr"},
    {"optimizer.name", "optimizer optim optimizer_type optimizer_name algorithm"},
    {"optimizer.beta1 and optimizer.beta2", "betas adam_betas"},
    {"optimizer.beta1", "adam_beta1"},
    {"optimizer.beta2", "adam_beta2"},
    {"optimizer.eps", "epsilon adam_epsilon adam_eps"},
    {"optimizer.weight_decay", "wd"},
    {"optimizer.momentum", "mu"},
    {"training.max_norm",
     "max_grad_norm grad_clip clip_grad clip_grad_norm gradient_clip_val gradient_clipping gradient_clip "
     "grad_clip_norm clip clip_norm"},
    {"lr_scheduler.warmup_steps, in steps",
     "warmup warmup_ratio warmup_pct lr_warmup_iters lr_warmup_steps num_warmup_steps warmup_iters"},
    {"lr_scheduler.decay_type", "lr_scheduler scheduler lr_scheduler_type lr_schedule lr_decay_style"},
    {"lr_scheduler.min_lr_factor, a share of optimizer.lr", "min_lr min_learning_rate lr_min"},
    {"lr_scheduler.decay_ratio, a share of all steps",
     "decay_steps lr_decay_steps lr_decay_iters stable_ratio stable_steps cooldown_steps"},
    // Length and batch.
    {"training.steps", "max_steps num_steps train_steps train_iters max_iters iterations num_iterations"},
    {"training.steps; a dataset that ends begins again", "epochs num_epochs max_epochs num_train_epochs"},
    {"training.seq_len",
     "max_length max_seq_length max_seq_len seq_length sequence_length sequence_len block_size context_length "
     "max_context_length cutoff_len model_max_length"},
    {"training.local_batch_size",
     "batch_size micro_batch_size microbatch_size device_batch_size per_device_batch_size per_device_train_batch_size "
     "train_micro_batch_size_per_gpu"},
    {"training.global_batch_size", "total_batch_size effective_batch_size train_batch_size"},
    {"training.global_batch_size; the number of microbatches follows from it",
     "gradient_accumulation_steps num_gradient_accumulation_steps gradient_accumulation grad_accum grad_accum_steps "
     "accumulate_grad_batches accumulation_steps"},
    // Precision and memory.
    {"training.mixed_precision_param, \"bfloat16\" or \"float32\"",
     "bf16 fp16 fp32 tf32 use_bf16 precision mixed_precision amp torch_dtype"},
    {"activation_checkpoint.mode, \"full\", \"selective\", \"memory_budget\" or \"none\"",
     "gradient_checkpointing use_gradient_checkpointing enable_gradient_checkpointing activation_checkpointing "
     "enable_activation_checkpointing recompute recompute_granularity recompute_activations ac "
     "activation_checkpoint_mode activation_checkpoint"},
    {"training.enable_cpu_offload", "cpu_offload offload offload_params fsdp_offload_params"},
    {"compile.enable", "compile torch_compile use_compile jit"},
    // Ranks.
    {kShards,
     "dp ddp fsdp hsdp dp_degree dp_size data_parallel data_parallel_size use_fsdp enable_fsdp enable_ddp zero "
     "zero_stage deepspeed data_parallel_type"},
    {"parallelism.data_parallel_shard_degree", "dp_shard fsdp_degree fsdp_size dp_shard_degree data_parallel_degree"},
    {"parallelism.data_parallel_replicate_degree", "dp_replicate dp_replicate_degree num_replicas"},
    {"parallelism.tensor_parallel_degree",
     "tp tp_degree tp_size tensor_parallel tensor_parallel_size tensor_model_parallel_size model_parallel_size "
     "enable_tp"},
    {"parallelism.pipeline_parallel_degree",
     "pp pp_degree pp_size pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size"},
    {"parallelism.context_parallel_degree",
     "cp cp_degree cp_size context_parallel context_parallel_size sequence_parallel_size"},
    {"parallelism.expert_parallel_degree",
     "ep ep_degree ep_size expert_parallel expert_parallel_size expert_model_parallel_size expert_parallel_mode"},
    {"parallelism.enable_sequence_parallel", "sequence_parallel sp"},
    {"parallelism.enable_async_tensor_parallel", "async_tp enable_async_tp"},
    {"parallelism.pipeline_parallel_schedule", "schedule pp_schedule pipeline_schedule"},
    {"parallelism.pipeline_parallel_microbatch_size, in sequences per microbatch",
     "num_microbatches n_microbatches pp_microbatches pipeline_parallel_microbatches"},
    {"resources.ranks, or run with --nproc RANKS",
     "num_gpus n_gpus ngpu gpus world_size nproc nproc_per_node num_processes devices num_devices gpus_per_node "
     "num_gpus_per_node"},
    {"resources.ranks_per_node, or run with --nodes NODES", "num_nodes nnodes nodes"},
    // Files and intervals.
    {"checkpoint.interval, in steps",
     "save_steps save_interval save_freq save_every ckpt_interval checkpoint_interval checkpoint_every save_strategy "
     "every frequency"},
    {"checkpoint.keep_latest_k", "save_total_limit max_to_keep save_top_k keep_last keep_last_k keep_last_n keep"},
    {"checkpoint.folder, a name below job.dump_folder",
     "checkpoint_dir checkpoint_folder ckpt_dir checkpoint_path save_folder"},
    {"checkpoint.enable; a job resumes automatically. Other weights: checkpoint.initial_load_path",
     "resume resume_from resume_from_checkpoint load_from load_folder load_path load ckpt_path auto_resume"},
    {"checkpoint.initial_load_path, with checkpoint.initial_load_in_hf",
     "pretrained base_model model_name_or_path pretrained_model_name_or_path init_from pretrained_checkpoint "
     "init_weights_from"},
    {"checkpoint.async_mode, \"async\" or \"async_with_pinned_mem\"",
     "async async_save use_async enable_async async_checkpoint"},
    {"checkpoint.last_save_in_hf", "save_hf save_in_hf export_hf"},
    {"job.dump_folder", "output_dir out_dir save_dir output_folder log_dir exp_dir"},
    {"metrics.log_freq, in steps", "logging_steps log_interval log_every log_every_n_steps log_every_steps print_freq"},
    {"validation.freq, in steps",
     "eval_steps eval_interval eval_freq eval_every eval_iters evaluation_strategy eval_strategy val_interval "
     "val_check_interval val_freq do_eval"},
    {"checkpoint.enable", "checkpoint"},
    {"validation.enable", "validation"},
    {"metrics.enable_wandb", "wandb use_wandb report_to"},
    {"metrics.enable_tensorboard", "tensorboard use_tensorboard tb"},
    {"set the environment variable WANDB_PROJECT (WANDB_NAME) of the program that sends metrics.jsonl",
     "wandb_project wandb_name wandb_entity wandb_run_name project_name run_name"},
    {"job.description", "title description experiment_name exp_name job_name"},
    {"profiling.enable_profiling", "profiling profile profiler enable_profiler run_profiler"},
    // Data and model.
    {"training.dataset, or training.dataset_path for your own files",
     "dataset_name datasets train_dataset train_data data_path data_dir train_files train_file"},
    {"training.dataloader.packing", "packing sample_packing packed"},
    {"model.hf_assets_path, the folder of the tokenizer",
     "tokenizer tokenizer_type tokenizer_name tokenizer_path tokenizer_model"},
    {"model.name and model.flavor", "model model_type model_name architecture arch variant model_size"},
    {"the sizes of a model belong to its flavor: set model.flavor",
     "dim n_layers num_layers n_heads num_heads n_kv_heads hidden_size num_hidden_layers num_attention_heads "
     "ffn_hidden_size intermediate_size vocab_size rope_theta"},
    {"the attention variant belongs to the model's flavor, such as debugmodel_flex_attn",
     "attn_implementation attention attention_backend attn_type flash_attention use_flash_attn use_flex_attn"},
    // Images.
    {"training.img_size, in pixels", "resolution image_size img_resolution image_resolution"},
    {"training.classifier_free_guidance_prob",
     "proportion_empty_prompts cfg_prob cfg_dropout text_dropout caption_dropout"},
    {"validation.classifier_free_guidance_scale, with validation.enable_classifier_free_guidance",
     "guidance_scale cfg_scale cfg guidance"},
    {"validation.denoising_steps", "num_inference_steps inference_steps sampling_steps sample_steps"},
    {"validation.save_img_count; the prompts are the captions of the validation data",
     "num_validation_images validation_prompt validation_prompts"},
    {"encoder.max_t5_encoding_len", "max_sequence_length t5_max_length"},
    {"encoder.autoencoder_path", "vae vae_path pretrained_vae_model_name_or_path autoencoder ae_path"},
    {"encoder.t5_encoder and encoder.clip_encoder", "text_encoder text_encoders text_encoder_2"},
    {"training.dataloader.image_key", "image_column"},
    {"training.dataloader.caption_key", "caption_column text_column"},
    {"debug.seed", "random_seed manual_seed global_seed"},
    {"training.max_logits_mib; it limits the memory of the loss", "loss_num_chunks num_chunks"},
};

constexpr Meaning kSections[] = {
    {"write [parallelism]: data_parallel_shard_degree, data_parallel_replicate_degree, tensor_parallel_degree, "
     "pipeline_parallel_degree, context_parallel_degree, expert_parallel_degree",
     "ddp hsdp tensor_parallel pipeline pipeline_parallel context_parallel expert_parallel deepspeed zero "
     "megatron strategy trainer"},
    {"write [resources]: ranks, ranks_per_node, device", "hardware cluster launcher slurm torchrun"},
    {"set training.mixed_precision_param, \"bfloat16\" or \"float32\"", "amp precision mixed_precision"},
    {"write [lora]", "peft qlora adapter adapters"},
    {"write [encoder]: t5_encoder, clip_encoder, autoencoder_path", "vae autoencoder text_encoder text_encoders"},
    {"write [metrics]", "log logger wandb tensorboard"},
    {"write [validation]", "eval evaluation val"},
    {"write [checkpoint]", "ckpt save saver checkpointing"},
    {"write [job]: dump_folder, description", "run experiment general global output"},
    {"write [profiling]", "profile profiler"},
    {"write [quantize.linear.float8]", "float8 quantize.float8 quantize.float8.dense quantize.fp8 quantize.linear.fp8"},
    {"write [quantize.linear.mx]", "mx mx.dense quantize.mx"},
    {"write [quantize.grouped_mm.float8]", "quantize.moe.float8 float8.moe quantize.moe"},
    {"write [quantize.grouped_mm.mx]", "quantize.moe.mx mx.moe"},
    {"set training.max_logits_mib; it limits the memory of the loss", "loss"},
    {"set fault_tolerance.enable, with its keys in [fault_tolerance]", "ft torchft"},
};

std::string advice(std::string_view says) {
  const bool is_key = says.substr(0, says.find_first_of(" ,;")).find('.') != says.npos;
  return (is_key ? "set " : "") + std::string(says);
}

std::string explain(std::span<const Meaning> meanings, std::string_view given) {
  std::string word = absl::AsciiStrToLower(std::string(given));
  std::replace(word.begin(), word.end(), '-', '_');
  for (const Meaning& meaning : meanings) {
    const std::vector<std::string> words = absl::StrSplit(std::string(meaning.words), ' ');
    if (std::find(words.begin(), words.end(), word) != words.end()) return advice(meaning.says);
  }
  return "";
}

}  // namespace

std::string explain_unknown_name(std::string_view name) { return explain(kMeanings, name); }

std::string explain_section(std::string_view section) { return explain(kSections, section); }

namespace {

constexpr ShardingStrategy kStrategies[] = {
    {"FULL_SHARD", "always"},
    {"SHARD_GRAD_OP", "never"},
    {"HYBRID_SHARD", "always", ShardingStrategy::Layout::kHybrid},
    {"_HYBRID_SHARD_ZERO2", "never", ShardingStrategy::Layout::kHybrid},
    {"NO_SHARD", "default", ShardingStrategy::Layout::kReplicated},
    // Other names of the same strategies.
    {"FSDP", "always"},
    {"ZERO3", "always"},
    {"ZERO2", "never"},
    {"HSDP", "always", ShardingStrategy::Layout::kHybrid},
    {"DDP", "default", ShardingStrategy::Layout::kReplicated},
};

// Returns the number of ranks that the other axes leave to data parallelism.
int data_ranks(const JobConfig& config) {
  const ParallelismSection& p = config.parallelism;
  const int others = p.tensor_parallel_degree * p.pipeline_parallel_degree * p.context_parallel_degree;
  return others > 0 ? config.resources.ranks / others : 0;
}

std::string degrees(const std::string& replicate, const std::string& shard) {
  return absl::StrCat("set parallelism.data_parallel_replicate_degree = ", replicate,
                      " and parallelism.data_parallel_shard_degree = ", shard);
}

// Suggests one copy per node, if the configuration has a number of ranks per node.
std::string hybrid_degrees(const JobConfig& config) {
  const int ranks = data_ranks(config), node = config.resources.ranks_per_node;
  if (node > 1 && ranks > node && ranks % node == 0) return degrees(absl::StrCat(ranks / node), absl::StrCat(node));
  return degrees("NODES", "RANKS_PER_NODE");
}

}  // namespace

const ShardingStrategy* find_sharding_strategy(std::string_view name) {
  std::string wanted = absl::AsciiStrToUpper(std::string(name));
  if (absl::StartsWith(wanted, "SHARDINGSTRATEGY.")) wanted.erase(0, wanted.find('.') + 1);
  for (const ShardingStrategy& strategy : kStrategies) {
    const bool same = strategy.name == wanted || (strategy.name[0] == '_' && strategy.name.substr(1) == wanted);
    if (same) return &strategy;
  }
  return nullptr;
}

std::optional<FieldError> check_degrees(const ShardingStrategy& strategy, const JobConfig& config) {
  const ParallelismSection& p = config.parallelism;
  const int copies = p.data_parallel_replicate_degree, shards = p.data_parallel_shard_degree;
  const int ranks = data_ranks(config);
  if (strategy.layout == ShardingStrategy::Layout::kHybrid) {
    const bool shared = shards > 1 || (shards == -1 && copies > 0 && ranks / copies > 1);
    if (copies > 1 && shared) return std::nullopt;
    return FieldError{"shards within groups of ranks and replicates across them, but the degrees do not",
                      hybrid_degrees(config)};
  }
  if (strategy.layout == ShardingStrategy::Layout::kReplicated) {
    if (shards == 1 || (shards == -1 && copies == ranks)) return std::nullopt;
    return FieldError{"gives every rank all weights, but the degrees shard them", degrees(absl::StrCat(ranks), "1")};
  }
  return std::nullopt;
}

}  // namespace titan::config
