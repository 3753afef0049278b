#include "common/plan/config/fields.h"

#include <iterator>
#include <utility>

namespace titan::config {
namespace {

// Limit of counts of sequences and tokens: products of smaller ones fit in 64 bits, and larger ones are typing errors.
constexpr double kMost = 1 << 30;

std::vector<Field> joined(std::vector<Field> fields, std::vector<Field> more) {
  fields.insert(fields.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return fields;
}

}  // namespace

std::vector<Field> fields_of(JobSection& c) {
  return {
      Field("config_file", c.config_file, "The file that this configuration was read from")
          .is_path()
          .without_effect("it is the file that titanctl or titan-rank is given"),
      Field("dump_folder", c.dump_folder,
            "Folder for checkpoints, metrics and logs of the job; all its nodes must see it")
          .is_path(),
      Field("description", c.description, "Free text about the job"),
      Field("print_config", c.print_config, "Print the resolved configuration when training starts"),
      Field("save_config_file", c.save_config_file,
            "Also write the resolved configuration as JSON to this file under dump_folder"),
      Field("custom_config_module", c.custom_config_module, "Python module that extends the configuration"),
      Field("umask", c.umask,
            "Permissions that files and folders of the job do not get, in octal: \"027\" hides checkpoints, traces and "
            "metrics from all but the user and the group; the default is the umask of `titanctl submit`'s shell"),
  };
}

std::vector<Field> fields_of(ProfilingSection& c) {
  return {
      Field("enable_profiling", c.enable_profiling, "Record profiler traces"),
      Field("save_traces_folder", c.save_traces_folder, "Folder of the traces under dump_folder"),
      Field("profile_freq", c.profile_freq, "Steps between two traces, and two memory snapshots")
          .in("steps")
          .at_least(1),
      Field("profiler_active", c.profiler_active, "Steps that one trace covers").in("steps").at_least(1),
      Field("profiler_warmup", c.profiler_warmup, "Steps before a trace in which the profiler warms up")
          .in("steps")
          .at_least(0),
      Field("enable_memory_snapshot", c.enable_memory_snapshot,
            "Record the device's memory use, every profile_freq steps"),
      Field("save_memory_snapshot_folder", c.save_memory_snapshot_folder, "Folder of the snapshots under dump_folder"),
  };
}

std::vector<Field> fields_of(MetricsSection& c) {
  return {
      Field("log_freq", c.log_freq, "Steps between two log lines; the first step is always logged")
          .in("steps")
          .at_least(1),
      Field("enable_tensorboard", c.enable_tensorboard, "Write TensorBoard event files"),
      Field("disable_color_printing", c.disable_color_printing, "Log lines without colors"),
      Field("save_tb_folder", c.save_tb_folder, "Folder of the event files under dump_folder"),
      Field("save_for_all_ranks", c.save_for_all_ranks,
            "Every rank writes metrics, not only the one that has the loss"),
      Field("enable_wandb", c.enable_wandb, "Send metrics to Weights & Biases"),
      Field("device_peak_tflops", c.device_peak_tflops,
            "Peak of one device, for MFU. By default: the GPU's known peak, or on a CPU the rate of matrix products "
            "measured when the job starts; else no MFU")
          .in("TFLOP/s")
          .above_zero(),
  };
}

std::vector<Field> fields_of(ModelSection& c) {
  return {
      Field("name", c.name, "Model family"),
      Field("flavor", c.flavor,
            "Size within the family; config.json: the model that this file in hf_assets_path describes, of which "
            "model.name may be left out"),
      Field("attn_mask_type", c.attn_mask_type,
            "Attention of a token: to all earlier tokens (causal) or to those of its document, which ends with eos "
            "(block_causal); by default that of the flavor")
          .one_of({"causal", "block_causal"}),
      Field("hf_assets_path", c.hf_assets_path,
            "Folder with tokenizer.json, tokenizer.model or *.tiktoken, and the weights when "
            "checkpoint.initial_load_in_hf is set")
          .is_path(),
      Field("converters", c.converters, "Conversions applied to the model before training")
          .one_of({"lora", "quantize.linear.float8", "quantize.linear.mx", "quantize.grouped_mm.float8",
                   "quantize.grouped_mm.mx"}),
      Field("print_after_conversion", c.print_after_conversion, "Print the model after its conversion"),
      Field("load_balance_coeff", c.load_balance_coeff,
            "How far a step moves the biases that balance a mixture's experts; 0: not at all. By default: "
            "what a resumed checkpoint was trained with, 0 where the loaded weights have no such biases, else the "
            "flavor's (0.001, Qwen3: 0)")
          .at_least(0),
      Field("spec", c.spec,
            "Numbers of the model of the flavor config.json, as JSON; titanctl and titan-rank fill it in from the "
            "file"),
  };
}

std::vector<Field> fields_of(OptimizerSection& c) {
  return {
      Field("name", c.name, "Optimizer; Muon updates the layers' matrices except the router's, AdamW the rest")
          .one_of({"AdamW", "Adam", "Muon"}),
      Field("lr", c.lr, "Peak learning rate; 0: weights do not change, to measure losses").at_least(0),
      Field("beta1", c.beta1, "Decay of the first moment").between(0, 1),
      Field("beta2", c.beta2, "Decay of the second moment").between(0, 1),
      Field("eps", c.eps, "Added to the denominator of the update").above_zero(),
      Field("weight_decay", c.weight_decay, "Weight decay, on all parameters").at_least(0),
      Field("implementation", c.implementation, "How the update is computed").one_of({"fused", "foreach", "for-loop"}),
      Field("early_step_in_backward", c.early_step_in_backward, "Update each parameter as soon as its gradient exists"),
      Field("state_dtype", c.state_dtype,
            "Type of AdamW's and Adam's moments (Muon's are of training.dtype); auto: training.dtype; 8bit: a code for "
            "each number of a matrix and a scale for each 256 of them, float32 for vectors and small matrices")
          .one_of({"auto", "float32", "bfloat16", "8bit"}),
      Field("stochastic_rounding", c.stochastic_rounding,
            "Round bfloat16 parameters stochastically when AdamW or Adam updates them, so that small updates are "
            "not lost; Muon rounds to the nearest number"),
      Field("momentum", c.momentum, "Muon: decay of the gradients' average").between(0, 1),
      Field("nesterov", c.nesterov, "Muon: look ahead by one gradient"),
      Field("ns_steps", c.ns_steps, "Muon: Newton-Schulz iterations that make an update orthogonal")
          .in("iterations")
          .between(1, 99),
      Field("adjust_lr", c.adjust_lr,
            "Muon: scale of an update: original, sqrt(max(1, rows / columns)); match_rms_adamw, 0.2 "
            "sqrt(max(rows, columns)), for which AdamW's learning rates are suitable")
          .one_of({"match_rms_adamw", "original"}),
      Field("qk_clip", c.qk_clip,
            "After each update, weights of queries and keys shrink where a head's largest logit in the step was above "
            "this; 0: off (MuonClip has 100)")
          .at_least(0),
      Field("param_groups", c.param_groups,
            "Groups of parameters with separate options; the first one whose pattern matches a parameter's name "
            "applies"),
  };
}

// Values are as in [optimizer].
std::vector<Field> fields_of(ParamGroup& c) {
  return {
      Field("pattern", c.pattern, "Regular expression that is searched in parameters' names"),
      Field("name", c.name, "Optimizer").one_of({"AdamW", "Adam", "Muon"}),
      Field("lr", c.lr, "Peak learning rate").at_least(0),
      Field("lr_factor", c.lr_factor, "Peak learning rate, times optimizer.lr").at_least(0),
      Field("weight_decay", c.weight_decay, "Weight decay").at_least(0),
      Field("beta1", c.beta1, "Decay of the first moment").between(0, 1),
      Field("beta2", c.beta2, "Decay of the second moment").between(0, 1),
      Field("eps", c.eps, "Added to the denominator of the update").above_zero(),
      Field("momentum", c.momentum, "Muon: decay of the gradients' average").between(0, 1),
      Field("nesterov", c.nesterov, "Muon: look ahead by one gradient"),
      Field("ns_steps", c.ns_steps, "Muon: Newton-Schulz iterations").in("iterations").between(1, 99),
      Field("adjust_lr", c.adjust_lr, "Muon: scale of an update").one_of({"match_rms_adamw", "original"}),
  };
}

std::vector<Field> fields_of(LrSchedulerSection& c) {
  return {
      Field("warmup_steps", c.warmup_steps, "Steps over which the rate rises linearly to its peak")
          .in("steps")
          .at_least(0),
      Field("total_steps", c.total_steps, "Length of the schedule; training.steps when not set")
          .in("steps")
          .at_least(1),
      Field("decay_ratio", c.decay_ratio, "Share of the steps that decay; the rest after the warmup is stable")
          .between(0, 1),
      Field("decay_type", c.decay_type, "Shape of the decay").one_of({"linear", "sqrt", "cosine"}),
      Field("min_lr_factor", c.min_lr_factor, "The decay ends at this share of the peak rate").between(0, 1),
  };
}

std::vector<Field> fields_of(TrainingSection& c) {
  std::vector<Field> fields = {
      Field("dataset", c.dataset, "Data to train on: texts, or for flux, vlm and qwen3_vl images with captions")
          .one_of({"c4_test", "c4", "c4_validation", "cc12m-wds", "cc12m", "cc12m-test", "coco-validation"})
          .or_library_name(),
      Field("dataset_path", c.dataset_path, "Folder or glob of the files; see the key format of dataloader").is_path(),
      Field("local_batch_size", c.local_batch_size, "Sequences per data-parallel rank and microbatch")
          .in("sequences")
          .between(1, kMost),
      Field("global_batch_size", c.global_batch_size,
            "Sequences per step; -1 means one microbatch on every data-parallel rank, or the value of the checkpoint "
            "from which a job resumes")
          .in("sequences")
          .between(1, kMost)
          .or_value(-1),
      Field("seq_len", c.seq_len, "Length of a sequence").in("tokens").between(1, kMost),
      Field("max_norm", c.max_norm, "Gradients are scaled down to this global L2 norm; 0: they are not").at_least(0),
      Field("max_logits_mib", c.max_logits_mib,
            "Logits of a microbatch beyond this are computed in parts of the vocabulary, and once more in the backward "
            "pass; 0: all at once; -1: 64 on CPUs, 2048 on GPUs")
          .in("MiB")
          .between(0, kMost)
          .or_value(-1),
      Field("steps", c.steps, "Optimizer steps to train").in("steps").at_least(1),
      Field("enable_cpu_offload", c.enable_cpu_offload,
            "Keep parameters, gradients and optimizer states in host memory"),
      Field("dtype", c.dtype,
            "Type of parameters, and of optimizer states unless optimizer.state_dtype says otherwise; float64 "
            "overrides the mixed-precision keys")
          .one_of({"float32", "bfloat16", "float64"}),
      Field("mixed_precision_param", c.mixed_precision_param, "Type of parameters and activations while computing")
          .one_of({"bfloat16", "float32"}),
      Field("mixed_precision_reduce", c.mixed_precision_reduce, "Type in which gradients are summed over ranks")
          .one_of({"float32"}),
      Field("gc_freq", c.gc_freq, "Steps between Python garbage collections")
          .without_effect("there is no Python garbage collector"),
      Field("gc_debug", c.gc_debug, "Debug the Python garbage collector")
          .without_effect("there is no Python garbage collector"),
      Field("nonfinite_policy", c.nonfinite_policy,
            "What happens at a non-finite loss or gradient norm: fail the job, or skip the step; in a validation: fail "
            "the job, or warn")
          .one_of({"fail", "skip"}),
      Field("read_step", c.read_step,
            "When the host reads a step's loss, norm and requests: at_once, it waits for the device after every step; "
            "late, it gives the device the next step first and acts on this one a step later (logged, validated and "
            "saved steps are always read at once); auto, late on a GPU, else at_once")
          .one_of({"auto", "at_once", "late"}),
  };
  return joined(std::move(fields), image_fields_of(c));
}

std::vector<Field> fields_of(DataLoaderSection& c) {
  constexpr std::string_view kThread = "batches are prepared by a thread of the rank; see the key prefetch";
  std::vector<Field> fields = {
      Field("num_workers", c.num_workers, "Python loader processes").at_least(0).without_effect(kThread),
      Field("persistent_workers", c.persistent_workers, "Keep Python loader processes").without_effect(kThread),
      Field("pin_memory", c.pin_memory, "Copy batches to pinned memory in the Python loader").without_effect(kThread),
      Field("prefetch_factor", c.prefetch_factor, "Batches per Python loader process")
          .at_least(0)
          .without_effect(kThread),
      Field("order", c.order,
            "global: one stream distributed over all ranks, the same for every mesh; per_rank: each rank reads its own "
            "documents, as in torchtitan")
          .one_of({"global", "per_rank"}),
      Field("prefetch", c.prefetch, "Microbatches prepared ahead; 0 prepares them when they are needed")
          .in("microbatches")
          .between(0, 1024),
      Field("max_bad_lines", c.max_bad_lines, "More malformed documents than this fail the job")
          .in("documents")
          .at_least(0),
      Field("format", c.format,
            "What dataset_path holds: JSON lines, plain text, Parquet, a token index of titan-data, Megatron-LM's "
            ".bin and .idx; for flux, vlm and qwen3_vl: tar files of WebDataset, a folder of image files, Parquet with "
            "images, and "
            "for flux encodings that were computed beforehand; auto decides by file names")
          .one_of({"auto", "jsonl", "text", "parquet", "megatron", "titan", "webdataset", "image_folder",
                   "parquet_images", "encodings"}),
      Field("text_key", c.text_key, "Key of JSON lines, or column of Parquet files, that holds a document's text"),
      Field(
          "messages_key", c.messages_key,
          "Key of JSON lines, or column of Parquet files, that holds a conversation's messages, which the tokenizer's "
          "chat template turns into text; empty: documents are texts (text_key)"),
      Field("train_on", c.train_on,
            "Labels in conversations: assistant, its messages with the token that ends each; all, "
            "every token")
          .one_of({"assistant", "all"}),
      Field("text_documents", c.text_documents,
            "A document of plain text: a whole file, or the text between blank lines")
          .one_of({"file", "blank_lines"}),
      Field("sources", c.sources,
            "Several datasets in one stream of rows, each with its share; instead of dataset and dataset_path"),
      Field("shuffle", c.shuffle,
            "Shuffles each pass differently: rows (of token indexes and Megatron-LM's files) or documents (of "
            "these, of Parquet, and of text that is not compressed)")
          .one_of({"none", "rows", "documents"}),
      Field("shuffle_seed", c.shuffle_seed, "Seed of the shuffles").at_least(0),
      Field("packing", c.packing,
            "How documents become rows: concatenate cuts one stream of all; best_fit cuts no document that fits a row, "
            "and fills rows up with padding")
          .one_of({"concatenate", "best_fit"}),
      Field("packing_window", c.packing_window, "Documents among which best_fit searches for one that fills a row")
          .in("documents")
          .between(1, 1 << 20),
  };
  return joined(std::move(fields), image_fields_of(c));
}

// The name identifies a source in checkpoints and metrics.
std::vector<Field> fields_of(DataSource& c) {
  return {
      Field("name", c.name, "Name in metrics and checkpoints"),
      Field("dataset", c.dataset, "Name of a dataset").one_of({"c4_test", "c4", "c4_validation"}).or_library_name(),
      Field("dataset_path", c.dataset_path, "Folder or glob of the files").is_path(),
      Field("weight", c.weight, "Share of the rows, relative to the other sources' weights").between(0, 1e6),
      Field("weight_at_step", c.weight_at_step, "Later weights, each as STEP: WEIGHT, valid from that step"),
      Field("repeat", c.repeat, "Begin again after the last document; else the other sources take over the share"),
      Field("format", c.format, "As in the dataloader")
          .one_of({"auto", "jsonl", "text", "parquet", "megatron", "titan"}),
      Field("text_key", c.text_key, "As in the dataloader"),
      Field("messages_key", c.messages_key, "As in the dataloader"),
      Field("train_on", c.train_on, "As in the dataloader").one_of({"assistant", "all"}),
      Field("text_documents", c.text_documents, "As in the dataloader").one_of({"file", "blank_lines"}),
      Field("shuffle", c.shuffle, "As in the dataloader").one_of({"none", "rows", "documents"}),
  };
}

std::vector<Field> fields_of(CheckpointSection& c) {
  return {
      Field("enable", c.enable, "Save checkpoints and resume from them"),
      Field("enable_ft_dataloader_checkpoints", c.enable_ft_dataloader_checkpoints,
            "Each fault-tolerant replica saves its data position at every step"),
      Field("folder", c.folder,
            "Folder of the checkpoints under dump_folder, or s3://BUCKET/FOLDER of an object store"),
      Field("interval", c.interval, "Steps between two checkpoints").in("steps").at_least(1),
      Field("initial_load_path", c.initial_load_path,
            "Checkpoint to start from when the job has none yet: a step's folder, or one of torchtitan's; also "
            "of an "
            "object store (s3://BUCKET/FOLDER)")
          .is_path(),
      Field("initial_load_model_only", c.initial_load_model_only, "Load only the model from initial_load_path"),
      Field(
          "initial_load_in_hf", c.initial_load_in_hf,
          "Start from Hugging Face safetensors in initial_load_path, or in model.hf_assets_path when that is not set"),
      Field(
          "initial_load_in_hf_quantized", c.initial_load_in_hf_quantized,
          "The Hugging Face weights are quantized (fp8, MXFP4): a warning when they are not; they are read either way"),
      Field("initial_load_vision_path", c.initial_load_vision_path,
            "vlm: folder of Hugging Face weights of SigLIP 2, whose vision tower the job starts with when it has no "
            "checkpoint yet; the language model's weights are those of initial_load_path, or random")
          .is_path(),
      Field("last_save_model_only", c.last_save_model_only, "The last checkpoint holds only the model"),
      Field("last_save_in_hf", c.last_save_in_hf, "The last checkpoint is written as Hugging Face safetensors"),
      Field("export_dtype", c.export_dtype, "Type of the weights in a model-only last checkpoint")
          .one_of({"float32", "bfloat16", "float16"}),
      Field("async_mode", c.async_mode, "Whether training continues while a checkpoint is written")
          .one_of({"disabled", "async", "async_with_pinned_mem"}),
      Field("keep_latest_k", c.keep_latest_k, "Checkpoints older than the latest k are deleted; 0 keeps all")
          .at_least(0),
      Field("load_step", c.load_step, "Step to load; -1 means the latest one").in("steps").at_least(0).or_value(-1),
      Field("exclude_from_loading", c.exclude_from_loading, "Parts of a checkpoint that are not loaded")
          .one_of({"model", "optimizer", "lr_scheduler", "dataloader", "train_state"}),
      Field("enable_first_step_checkpoint", c.enable_first_step_checkpoint, "Also save after the first step"),
      Field("create_seed_checkpoint", c.create_seed_checkpoint,
            "Save the initial weights as step 0 and exit; needs one rank"),
      Field("load_only", c.load_only, "Load checkpoints but save none"),
      Field("max_failed_saves", c.max_failed_saves,
            "Consecutive failed saves that end the attempt; 0: training always continues")
          .at_least(0),
      Field("last_save_retry_seconds", c.last_save_retry_seconds,
            "How long to retry a save whose failure would end the attempt when storage fails: the one at "
            "training.steps, on a stop request (no longer than its grace), and the last that max_failed_saves allows")
          .in("seconds")
          .at_least(0),
  };
}

std::vector<Field> fields_of(CommSection& c) {
  return {
      Field("init_timeout_seconds", c.init_timeout_seconds, "Timeout of a collective until the first step is done")
          .in("seconds")
          .at_least(1),
      Field("train_timeout_seconds", c.train_timeout_seconds, "Timeout of a collective after the first step")
          .in("seconds")
          .at_least(1),
      Field("trace_buf_size", c.trace_buf_size,
            "Number of newest collectives that each rank records, and writes when the attempt fails; 0: none")
          .between(0, 1'000'000),
      Field("save_traces_folder", c.save_traces_folder, "Folder of these recordings under dump_folder"),
      Field("save_traces_file_prefix", c.save_traces_file_prefix,
            "Start of a recording's file name, before the rank's number"),
      Field("shared_memory", c.shared_memory,
            "CPU ranks on one machine communicate through shared memory where the kernel allows it, else over sockets"),
      Field(
          "max_ctas", c.max_ctas,
          "Most CTAs of a GPU, each on an SM, that a collective takes from concurrent matrix products; 0: NCCL decides")
          .between(0, 64),
      Field(
          "message_max_ctas", c.message_max_ctas,
          "Most CTAs of a GPU that a message takes while it is in flight or waited for, between pipeline stages, in a "
          "ring of contexts or in asynchronous tensor parallelism; 0: NCCL decides, up to 32")
          .between(0, 64),
      Field("mode", c.mode, "default, or simulations for dry runs and debugging")
          .one_of({"default", "fake_backend", "local_tensor"}),
  };
}

std::vector<Field> fields_of(ValidationSection& c) {
  std::vector<Field> fields = {
      Field("enable", c.enable, "Measure the loss on other data while training"),
      Field("dataset", c.dataset, "Data to validate on; as in training")
          .one_of({"c4_validation", "c4_test", "c4", "cc12m-wds", "cc12m", "cc12m-test", "coco-validation"})
          .or_library_name(),
      Field("dataset_path", c.dataset_path, "Folder or glob of the files; see the key format of dataloader").is_path(),
      Field("local_batch_size", c.local_batch_size, "Sequences per data-parallel rank")
          .in("sequences")
          .between(1, kMost),
      Field("seq_len", c.seq_len, "Length of a sequence").in("tokens").between(1, kMost),
      Field("freq", c.freq, "Training steps between two validations").in("steps").at_least(1),
      Field("steps", c.steps, "Batches per validation; -1 means all data").in("batches").at_least(1).or_value(-1),
      Field("sample_prompts", c.sample_prompts,
            "Texts that the model continues at each validation, as lines of rank 0's log"),
      Field("sample_max_new_tokens", c.sample_max_new_tokens, "Tokens that follow each of these prompts")
          .in("tokens")
          .between(1, 1 << 16),
      Field("sample_temperature", c.sample_temperature,
            "Divides the logits of these texts; 0 takes the likeliest token")
          .at_least(0),
  };
  return joined(std::move(fields), image_fields_of(c));
}

std::vector<Field> fields_of(DebugSection& c) {
  return {
      Field("seed", c.seed,
            "Seed of the initial weights; when not set, one is drawn once for the job's life and recorded")
          .at_least(0),
      Field("deterministic", c.deterministic, "Only operations that give the same bits in every run"),
      Field("deterministic_warn_only", c.deterministic_warn_only, "Warn about other operations instead of failing"),
      Field("moe_force_load_balance", c.moe_force_load_balance, "Assign tokens to experts round-robin"),
  };
}

std::vector<Field> fields_of(ResourcesSection& c) {
  return {
      Field("ranks", c.ranks, "Rank processes of the job; --nproc N sets it").in("ranks").between(1, 1 << 20),
      Field("ranks_per_node", c.ranks_per_node,
            "Ranks on each node; 0 packs as many as fit; --nodes M sets it to ranks / M")
          .in("ranks")
          .at_least(0),
      Field("device", c.device, "Device of a rank").one_of({"cpu", "cuda"}),
      Field("threads_per_rank", c.threads_per_rank,
            "CPU threads of a rank; 0 divides the node's cores among its ranks once")
          .in("threads")
          .between(0, 4096),
      Field(
          "kernels", c.kernels,
          "Operations of CPU ranks: Titan's kernels at the best level that the processor supports (auto) or at a given "
          "one, or only LibTorch's (reference, also for GPU ranks)")
          .one_of({"auto", "reference", "avx2", "avx512", "avx512bf16", "amx"}),
      Field("expandable_segments", c.expandable_segments,
            "GPU ranks' allocator maps memory into segments that grow, so that blocks of other sizes leave no holes; "
            "the node's environment (PYTORCH_ALLOC_CONF) overrides it"),
      Field("pin_cpus", c.pin_cpus,
            "Pin each rank to separate CPUs near its GPU and prefer their memory; auto: GPU ranks, if the "
            "node's topology is known and no CPUs were chosen for them")
          .one_of({"auto", "on", "off"}),
  };
}

std::vector<Field> fields_of(RestartSection& c) {
  return {
      Field("no_progress_limit", c.no_progress_limit,
            "Restarts without a new step or checkpoint after which the job fails")
          .in("restarts")
          .at_least(1),
      Field("backoff_initial_seconds", c.backoff_initial_seconds, "Pause before the second restart without progress")
          .in("seconds")
          .at_least(0),
      Field("backoff_max_seconds", c.backoff_max_seconds, "Longest pause before a restart").in("seconds").at_least(0),
      Field("unreachable_grace_seconds", c.unreachable_grace_seconds,
            "A job wholly on silent nodes is left running this long before it is restarted elsewhere")
          .in("seconds")
          .at_least(0),
      Field("orphan_timeout_seconds", c.orphan_timeout_seconds,
            "Ranks stop after this long without their worker daemon")
          .in("seconds")
          .above_zero(),
      Field("stop_grace_seconds", c.stop_grace_seconds, "Time to reach a step edge and save before ranks are killed")
          .in("seconds")
          .at_least(0),
  };
}

std::vector<Field> fields_of(SchedulingSection& c) {
  return {
      Field("priority", c.priority, "Jobs with a higher priority are placed first").between(-1000000, 1000000),
      Field("project", c.project, "Project that the job belongs to"),
      Field("job_id", c.job_id, "Name of the job within its project; empty lets the controller choose one"),
      Field("time_limit_seconds", c.time_limit_seconds,
            "The job saves and stops this long after its first placement, including restarts; 0: never. A job with a "
            "limit may run on nodes that a larger one waits for")
          .in("seconds")
          .at_least(0),
  };
}

}  // namespace titan::config
