#pragma once

// A training job's configuration: one struct per TOML section, named as in torchtitan 0.2.2 and its modules for flux
// and vlm ([encoder], [inference], [data]), plus [lora], [resources], [restart] and [scheduling]. Meanings, allowed
// values, bounds and units are in fields*.cc, whose list also drives parsing, help, dumps and the JSON schema. This
// header is plain data: include load.h, validate.h or json.h to work with it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/model_override.h"

namespace titan::config {

struct JobSection {
  std::optional<std::string> config_file;
  std::string dump_folder = "./outputs";
  std::string description = "default job";
  bool print_config = false;
  std::optional<std::string> save_config_file;
  std::string custom_config_module;
  std::string umask;  // Octal; empty: the umask of the submitting process.
};

struct ProfilingSection {
  bool enable_profiling = false;
  std::string save_traces_folder = "profile_traces";
  int profile_freq = 10;
  int profiler_active = 1;
  int profiler_warmup = 3;
  bool enable_memory_snapshot = false;
  std::string save_memory_snapshot_folder = "memory_snapshot";
};

struct MetricsSection {
  int log_freq = 10;
  bool enable_tensorboard = false;
  bool disable_color_printing = false;
  std::string save_tb_folder = "tb";
  bool save_for_all_ranks = false;
  bool enable_wandb = false;
  std::optional<double> device_peak_tflops;  // Not set: the GPU's known peak, or measured on a CPU.
};

struct ModelSection {
  std::string name = "llama3";
  std::string flavor = "debugmodel";
  std::optional<std::string> attn_mask_type;  // Not set: the flavor's mask.
  std::string hf_assets_path = "./tests/assets/tokenizer";
  std::vector<std::string> converters;
  bool print_after_conversion = false;
  std::optional<double> load_balance_coeff;  // Not set: that of a resumed checkpoint, else the flavor's.
  std::optional<std::string> spec;  // JSON of models::ModelSpec for the flavor "config.json" (config_flavor.h).
  ModelOverrideSection overrides;   // [model.override]
};

// An entry of [[optimizer.param_groups]]: applies to the parameters whose names match the pattern. Keys that are not
// set have [optimizer]'s value.
struct ParamGroup {
  std::string pattern;
  std::optional<std::string> name;
  std::optional<double> lr;
  std::optional<double> lr_factor;
  std::optional<double> weight_decay;
  std::optional<double> beta1;
  std::optional<double> beta2;
  std::optional<double> eps;
  std::optional<double> momentum;
  std::optional<bool> nesterov;
  std::optional<int> ns_steps;
  std::optional<std::string> adjust_lr;

  bool operator==(const ParamGroup&) const = default;
};

struct OptimizerSection {
  std::string name = "AdamW";
  double lr = 8e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::string implementation = "fused";
  bool early_step_in_backward = false;
  std::string state_dtype = "auto";
  bool stochastic_rounding = false;
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;
  std::string adjust_lr = "match_rms_adamw";
  double qk_clip = 0;
  std::vector<ParamGroup> param_groups;
};

struct LrSchedulerSection {
  std::int64_t warmup_steps = 200;
  std::optional<std::int64_t> total_steps;  // Not set: training.steps.
  std::optional<double> decay_ratio;        // Not set: decay starts right after the warmup.
  std::string decay_type = "linear";
  double min_lr_factor = 0.0;
};

// An entry of [[training.dataloader.sources]]. Keys that are not set have [training.dataloader]'s value.
struct DataSource {
  std::string name;
  std::optional<std::string> dataset;
  std::optional<std::string> dataset_path;
  double weight = 1;
  std::vector<std::string> weight_at_step;  // Each "STEP: WEIGHT"; parsed by source_weights().
  bool repeat = true;
  std::optional<std::string> format;
  std::optional<std::string> text_key;
  std::optional<std::string> messages_key;
  std::optional<std::string> train_on;
  std::optional<std::string> text_documents;
  std::optional<std::string> shuffle;

  bool operator==(const DataSource&) const = default;
};

struct DataLoaderSection {
  int num_workers = 0;
  bool persistent_workers = false;
  bool pin_memory = false;
  std::optional<std::int64_t> prefetch_factor;
  std::string order = "global";
  int prefetch = 2;
  std::int64_t max_bad_lines = 100;
  std::string format = "auto";
  std::string text_key = "text";
  std::string messages_key;  // Empty: documents are plain texts.
  std::string train_on = "assistant";
  std::string text_documents = "file";
  std::vector<DataSource> sources;
  std::string shuffle = "none";
  std::int64_t shuffle_seed = 0;
  std::string packing = "concatenate";
  std::int64_t packing_window = 1024;
  std::int64_t max_bad_samples = 100;
  std::string image_key;    // Empty: found by the usual names.
  std::string caption_key;  // Likewise.
  int decode_threads = 2;
};

struct TrainingSection {
  std::string dataset = "c4_test";
  std::optional<std::string> dataset_path;
  std::int64_t local_batch_size = 8;
  std::int64_t global_batch_size = -1;  // -1: see global_batch().
  std::int64_t seq_len = 2048;
  double max_norm = 1.0;
  std::int64_t max_logits_mib = -1;  // See max_logit_bytes().
  std::int64_t steps = 10000;
  bool enable_cpu_offload = false;
  std::string dtype = "float32";
  std::string mixed_precision_param = "bfloat16";
  std::string mixed_precision_reduce = "float32";
  int gc_freq = 50;
  bool gc_debug = false;
  std::string nonfinite_policy = "fail";
  std::string read_step = "auto";
  double classifier_free_guidance_prob = 0;
  double guidance_scale = 1;
  std::int64_t img_size = 256;
  bool test_mode = false;
  DataLoaderSection dataloader;
};

// Flux's frozen encoders of captions and images.
struct EncoderSection {
  std::string t5_encoder = "google/t5-v1_1-small";
  std::string clip_encoder = "openai/clip-vit-large-patch14";
  std::string autoencoder_path = "torchtitan/experiments/flux/assets/autoencoder/ae.safetensors";
  std::int64_t max_t5_encoding_len = 256;
  std::string dtype = "auto";
  std::string t5_weights = "dtype";
  bool shard_t5 = true;
};

// Images of the models vlm and qwen3_vl.
struct DataSection {
  std::int64_t max_images_per_batch = 10;
  std::int64_t max_patches_per_image = 256;
  std::int64_t patch_size = 16;
  std::int64_t spatial_merge_size = 1;
  std::int64_t packing_buffer_size = 0;  // 0: samples are not packed.
  bool balance_images = false;
};

struct ParallelismSection {
  int data_parallel_replicate_degree = 1;
  int data_parallel_shard_degree = -1;  // resolve() replaces -1.
  std::string fsdp_reshard_after_forward = "default";
  int tensor_parallel_degree = 1;
  bool enable_sequence_parallel = true;
  bool disable_loss_parallel = false;
  bool enable_async_tensor_parallel = false;
  int pipeline_parallel_degree = 1;
  std::optional<std::vector<std::vector<std::string>>> module_fqns_per_model_part;
  int pipeline_parallel_first_stage_less_layers = 1;
  int pipeline_parallel_last_stage_less_layers = 1;
  std::optional<std::int64_t> pipeline_parallel_layers_per_stage;
  std::string pipeline_parallel_schedule = "1F1B";
  std::string pipeline_parallel_schedule_csv;
  int pipeline_parallel_microbatch_size = 1;
  bool pipeline_parallel_expert_parallel_overlap = true;
  int context_parallel_degree = 1;
  std::optional<std::string> context_parallel_load_balancer = "headtail";
  std::string context_parallel_rotate_method = "allgather";
  int expert_parallel_degree = 1;
  int expert_tensor_parallel_degree = 1;
  std::string expert_parallel_comm_backend = "standard";
  std::string expert_parallel_dispatcher = "alltoall";
};

struct CheckpointSection {
  bool enable = false;
  bool enable_ft_dataloader_checkpoints = true;
  std::string folder = "checkpoint";
  std::int64_t interval = 500;
  std::optional<std::string> initial_load_path;
  bool initial_load_model_only = true;
  bool initial_load_in_hf = false;
  bool initial_load_in_hf_quantized = false;
  std::optional<std::string> initial_load_vision_path;
  bool last_save_model_only = true;
  bool last_save_in_hf = false;
  std::string export_dtype = "float32";
  std::string async_mode = "disabled";
  int keep_latest_k = 10;
  std::int64_t load_step = -1;
  std::vector<std::string> exclude_from_loading;
  bool enable_first_step_checkpoint = false;
  bool create_seed_checkpoint = false;
  bool load_only = false;
  int max_failed_saves = 3;
  double last_save_retry_seconds = 1800;
};

struct ActivationCheckpointSection {
  std::string mode = "selective";
  std::string selective_ac_option = "2";
  std::vector<std::string> per_op_sac_force_recompute_mm_shapes_by_fqns = {"moe.router.gate"};
  bool early_stop = false;
  double memory_budget = 0.5;
  bool visualize_memory_budget_pareto = false;
  bool preserve_rng_state = true;
  std::string determinism_check = "default";
  bool debug = false;
  std::vector<std::int64_t> layers;  // Empty: the mode applies to every layer.
};

struct CompileSection {
  bool enable = false;
  std::vector<std::string> components = {"model", "loss"};
  std::string graphs = "auto";
  std::string backend = "inductor";
};

struct Float8LinearSection {
  bool enable_fsdp_float8_all_gather = false;
  bool precompute_float8_dynamic_scale_for_fsdp = false;
  std::optional<std::string> recipe_name;
  std::vector<std::string> filter_fqns;
  bool emulate = false;
  std::string scales_over = "auto";
};

struct MxLinearSection {
  std::string mxfp8_dim1_cast_kernel_choice = "triton";
  std::string recipe_name = "mxfp8_cublas";
  std::vector<std::string> filter_fqns = {"output"};
};

struct Float8GroupedMmSection {
  std::vector<std::string> fqns;
};

struct MxGroupedMmSection {
  std::string recipe_name = "mxfp8";
  std::vector<std::string> fqns;
};

struct QuantizeLinearSection {
  Float8LinearSection float8;
  MxLinearSection mx;
};

struct QuantizeGroupedMmSection {
  Float8GroupedMmSection float8;
  MxGroupedMmSection mx;
};

struct QuantizeSection {
  QuantizeLinearSection linear;
  QuantizeGroupedMmSection grouped_mm;
};

struct LoraSection {
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> targets = {"attention", "feed_forward", "shared_experts"};
  std::string base = "compute";
};

struct CommSection {
  int init_timeout_seconds = 300;
  int train_timeout_seconds = 100;
  int trace_buf_size = 20000;
  std::string save_traces_folder = "comm_traces";
  std::string save_traces_file_prefix = "rank_";
  bool shared_memory = true;
  std::string mode = "default";
  int max_ctas = 0;          // For a collective's communicator; 0: NCCL's choice.
  int message_max_ctas = 4;  // For a communicator that carries messages.
};

struct MemoryEstimationSection {
  bool enable = false;
  bool disable_fake_mode = false;
};

struct FaultToleranceSection {
  bool enable = false;
  std::string process_group = "gloo";
  int process_group_timeout_ms = 10000;
  int replica_id = 0;
  int group_size = 0;
  int min_replica_size = 1;
  std::optional<std::string> semi_sync_method;
  int sync_steps = 5;
  bool should_quantize = false;
  int fragment_sync_delay = 0;
  double fragment_update_alpha = 0.0;
  std::vector<std::string> module_fqns_per_model_fragment;
  int num_fragments = 1;
};

struct ExperimentalSection {
  std::string custom_import;
  std::string custom_args_module;
};

struct ValidationSection {
  bool enable = false;
  std::string dataset = "c4_validation";
  std::optional<std::string> dataset_path;
  std::int64_t local_batch_size = 8;
  std::int64_t seq_len = 2048;
  std::int64_t freq = 10;
  std::int64_t steps = -1;
  std::vector<std::string> sample_prompts;
  std::int64_t sample_max_new_tokens = 64;
  double sample_temperature = 0;
  bool enable_classifier_free_guidance = false;
  double classifier_free_guidance_scale = 5;
  int denoising_steps = 50;
  std::int64_t eval_freq = 100;
  std::int64_t save_img_count = 1;
  std::string save_img_folder = "img";
  bool all_timesteps = false;
  DataLoaderSection dataloader;
};

// Generation of images from a file of prompts with a trained flux.
struct InferenceSection {
  std::string save_img_folder = "inference_results";
  std::string prompts_path = "./torchtitan/experiments/flux/inference/prompts.txt";
  std::int64_t local_batch_size = 2;
  std::optional<std::int64_t> img_size;  // Not set: training.img_size.
};

struct DebugSection {
  std::optional<std::int64_t> seed;
  bool deterministic = false;
  bool deterministic_warn_only = false;
  bool moe_force_load_balance = false;
};

struct ResourcesSection {
  int ranks = 1;
  int ranks_per_node = 0;  // 0: the scheduler packs as many as fit.
  std::string device = "cpu";
  int threads_per_rank = 0;  // 0: the node's cores divided by its ranks, resolved once and kept for the job's life.
  std::string kernels = "auto";
  bool expandable_segments = true;
  std::string pin_cpus = "auto";
};

struct RestartSection {
  int no_progress_limit = 3;
  double backoff_initial_seconds = 1;
  double backoff_max_seconds = 60;
  double unreachable_grace_seconds = 60;
  double orphan_timeout_seconds = 600;
  double stop_grace_seconds = 30;
};

struct SchedulingSection {
  int priority = 0;
  std::string project = "default";
  std::string job_id;          // Empty: the controller chooses one.
  int time_limit_seconds = 0;  // Counted from the first placement; 0: none.
};

struct JobConfig {
  JobSection job;
  ProfilingSection profiling;
  MetricsSection metrics;
  ModelSection model;
  OptimizerSection optimizer;
  LrSchedulerSection lr_scheduler;
  TrainingSection training;
  EncoderSection encoder;
  DataSection data;
  ParallelismSection parallelism;
  CheckpointSection checkpoint;
  ActivationCheckpointSection activation_checkpoint;
  CompileSection compile;
  QuantizeSection quantize;
  LoraSection lora;
  CommSection comm;
  MemoryEstimationSection memory_estimation;
  FaultToleranceSection fault_tolerance;
  ExperimentalSection experimental;
  ValidationSection validation;
  InferenceSection inference;
  DebugSection debug;
  ResourcesSection resources;
  RestartSection restart;
  SchedulingSection scheduling;
};

}  // namespace titan::config
