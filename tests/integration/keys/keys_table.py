"""Every configuration key, values of each kind for it, and the effect that each value must have. keys_test.py checks all of them against
the programs and generates docs/generated/keys.md.

A row is (key, value, effect[, situation][, text]). The effect is one of SHOWN; the text must be part of the error or warning.
"""

# Places where an effect is visible: the name of a method or answer in keys_test.py, and its name in docs/generated/keys.md.
SHOWN = {
    "refused": "refused",
    "warned": "warning",
    "loss": "loss of each step",
    "lr": "learning rate of each step",
    "tokens": "token count",
    "rows": "steps and metrics in metrics.jsonl",
    "experts": "tokens per expert",
    "validation": "validation loss",
    "files": "files in the dump folder",
    "sizes": "file sizes in the dump folder",
    "traffic": "collectives",
    "events": "events of rank 0",
    "recordings": "collectives recorded at a failure",
    "log": "rank output",
    "facts": "process facts",
    "bytes": "dry run: bytes",
    "activations": "dry run: activations",
    "split": "dry run: parameters",
    "schedule": "dry run: order of work",
    "sent": "dry run: collectives",
    "record": "the controller's job record",
    "placement": "placement",
    "restarts": "restart backoff",
}

# titan-rank flags for a model of 6 layers, 32 wide: three steps of two rows of 32 tokens.
SMALL = {
    "model.name": "small_llama3", "model.flavor": "small", "training.seq_len": 32, "training.local_batch_size": 2,
    "training.steps": 3, "lr_scheduler.warmup_steps": 1, "metrics.log_freq": 1, "optimizer.lr": 1e-2, "debug.seed": 0,
    "training.mixed_precision_param": "float32", "activation_checkpoint.mode": "none", "resources.threads_per_rank": 1,
    "comm.mode": "local_tensor",
}  # fmt: skip

TWO = {"resources.ranks": 2}
PIPELINE = {**TWO, "parallelism.pipeline_parallel_degree": 2}
FOUR = {**PIPELINE, "resources.ranks": 4}
TENSOR = {**TWO, "parallelism.tensor_parallel_degree": 2}
CONTEXT = {**TWO, "parallelism.context_parallel_degree": 2}
EXPERTS = {"model.name": "small_deepseek_v3"}
EXPERT_PARALLEL = {**EXPERTS, **TWO, "parallelism.expert_parallel_degree": 2}
EXPERT_TENSOR = {**EXPERTS, "resources.ranks": 4, "parallelism.tensor_parallel_degree": 2, "parallelism.expert_parallel_degree": 2}
SHORT = {"training.dataset_path": "{data}"}
BOARD = {"metrics.enable_tensorboard": True}
SAVES = {"checkpoint.enable": True, "checkpoint.interval": 2, "checkpoint.keep_latest_k": 0}
FULL = {**SAVES, "checkpoint.last_save_model_only": False, "checkpoint.interval": 1}
LONGER = {**FULL, "training.steps": 6, "lr_scheduler.total_steps": 6, "checkpoint.interval": 100}
ANOTHERS = {**LONGER, "checkpoint.initial_load_path": "{full}/checkpoint/step-3"}
VALIDATES = {"validation.enable": True, "validation.seq_len": 32, "validation.local_batch_size": 1, "validation.freq": 2,
             "validation.steps": 2}
DRY = {"comm.mode": "fake_backend"}
RECOMPUTES = {**DRY, "activation_checkpoint.mode": "selective"}
ADAPTERS = {"model.converters": "lora"}
BUDGET = {**DRY, "activation_checkpoint.mode": "memory_budget"}
MIXED = '[{"name": "a", "dataset_path": "{data}"}, {"name": "b", "dataset_path": "{texts}", "weight": 2}]'
FLOAT8 = {"model.converters": "quantize.linear.float8"}
EXPLODES = {"optimizer.lr": 1e37, "training.max_norm": 1e37}

# Situations: the other keys that a key needs to have an effect. "after": the run starts from a copy of that preparation's dump folder. {full}
# and {hf} in a value are the dump folders of preparations.
SITUATIONS = {
    "": {},
    "two ranks": TWO,
    "replicas": {**TWO, "parallelism.data_parallel_replicate_degree": 2},
    "a pipeline": PIPELINE,
    "a pipeline with FSDP": FOUR,
    "a pipeline's dry run": {**PIPELINE, **DRY},
    "a pipeline of four microbatches": {**PIPELINE, **DRY, "training.local_batch_size": 4},
    "two stages per rank": {**PIPELINE, **DRY, "parallelism.pipeline_parallel_schedule": "Interleaved1F1B"},
    "tensor parallelism": TENSOR,
    "context parallelism": CONTEXT,
    "context parallelism and short documents": {**CONTEXT, **SHORT, "model.flavor": "packed"},
    "experts": EXPERTS,
    "experts on two ranks": {**EXPERTS, **TWO},
    "expert parallelism": EXPERT_PARALLEL,
    "expert and tensor parallelism": EXPERT_TENSOR,
    "bfloat16": {"training.mixed_precision_param": "bfloat16"},
    "float8 layers": FLOAT8,
    "float8 layers on two ranks": {**FLOAT8, **TWO},
    "a dry run of float8 layers on two GPUs": {**FLOAT8, **TWO, **DRY, "resources.device": "cuda"},
    "float8 all-gathers": {**FLOAT8, **TWO, "quantize.linear.float8.enable_fsdp_float8_all_gather": True},
    "a job of float8 layers": {"plain": True, **FLOAT8},
    "MX layers": {"model.converters": "quantize.linear.mx"},
    "a job of MX layers": {"plain": True, "model.converters": "quantize.linear.mx"},
    "experts selected for float8": {**EXPERTS, "quantize.grouped_mm.float8.fqns": "experts"},
    "no expert selected for float8": {**EXPERTS, "model.converters": "quantize.grouped_mm.float8",
                                       "quantize.grouped_mm.float8.fqns": "others"},
    "LibTorch's operations": {"resources.kernels": "reference"},
    "AVX2 kernels": {"resources.kernels": "avx2"},
    "bfloat16 with AVX2 kernels": {"training.mixed_precision_param": "bfloat16", "resources.kernels": "avx2"},
    "kernels on GPUs": {"compile.enable": True},
    "short documents": SHORT,
    "packed documents": {"training.dataset_path": "{texts}", "training.dataloader.text_documents": "blank_lines",
                         "training.dataloader.packing": "best_fit"},
    "shuffled documents": {**SHORT, "training.dataloader.shuffle": "documents"},
    "block-causal short documents": {**SHORT, "model.flavor": "packed"},
    "a trace every step": {"profiling.profile_freq": 1, "profiling.profiler_warmup": 0},
    "traces": {"profiling.enable_profiling": True, "profiling.profile_freq": 3, "profiling.profiler_warmup": 1},
    "memory snapshots": {"profiling.enable_memory_snapshot": True, "profiling.profile_freq": 2},
    "a small max_norm": {"training.max_norm": 1e-3},
    "TensorBoard": BOARD,
    "TensorBoard of two ranks": {**BOARD, **TWO},
    "checkpoints": SAVES,
    "full checkpoints": FULL,
    "after three steps": {**LONGER, "after": "full"},
    "from another job's weights": ANOTHERS,
    "from another job's checkpoint": {**ANOTHERS, "checkpoint.initial_load_model_only": False},
    "Hugging Face weights in the assets": {**SAVES, "model.hf_assets_path": "{assets}"},
    "from Hugging Face weights": {**SAVES, "model.hf_assets_path": "{assets}", "checkpoint.initial_load_in_hf": True},
    "validation": VALIDATES,
    "validation of short documents": {**VALIDATES, "validation.dataset_path": "{data}"},
    "validation of packed documents": {**VALIDATES, "validation.dataset_path": "{texts}",
                                       "validation.dataloader.text_documents": "blank_lines",
                                       "validation.dataloader.packing": "best_fit"},
    "validation of shuffled documents": {**VALIDATES, "validation.dataset_path": "{data}",
                                         "validation.dataloader.shuffle": "documents"},
    "validation of two ranks": {**VALIDATES, **TWO},
    "bfloat16 parameters": {"training.dtype": "bfloat16"},
    "a dry run": DRY,
    "a dry run of bfloat16 parameters": {**DRY, "training.dtype": "bfloat16"},
    "a dry run of many tokens": {**DRY, "training.seq_len": 2048, "training.local_batch_size": 16},
    "selective recomputation": RECOMPUTES,
    "selective recomputation by operation": {**RECOMPUTES, "activation_checkpoint.selective_ac_option": "op"},
    "a memory budget": BUDGET,
    "full recomputation": {**DRY, "activation_checkpoint.mode": "full"},
    "a memory budget in training": {"activation_checkpoint.mode": "memory_budget"},
    "a non-finite step": EXPLODES,
    "a non-finite step on two ranks": {**EXPLODES, **TWO},
    "a non-finite step that is not logged": {**EXPLODES, **TWO, "metrics.log_freq": 100},
    "a non-finite step that is not logged, read late": {**EXPLODES, **TWO, "metrics.log_freq": 100, "training.read_step": "late"},
    "Muon": {"optimizer.name": "Muon"},
    "learning rate decay": {"training.steps": 5, "lr_scheduler.decay_ratio": 0.9, "lr_scheduler.min_lr_factor": 0.1},
    "damaged data": {"training.dataset_path": "{damaged}"},
    "a folder of JSON lines and text": {"training.dataset_path": "{data}"},
    "a folder of text files": {"training.dataset_path": "{texts}"},
    "validation samples": {**VALIDATES, "validation.sample_prompts": "The file", "validation.sample_max_new_tokens": 3},
    "damaged validation data": {**VALIDATES, "validation.dataset_path": "{damaged}"},
    "deterministic mode": {"debug.deterministic": True},
    "adapters": ADAPTERS,
    "a dry run of bfloat16 adapters": {**ADAPTERS, **DRY, "model.name": "llama3", "model.flavor": "debugmodel",
                                       "training.mixed_precision_param": "bfloat16"},
    "a job of adapters": {"plain": True, **ADAPTERS},
    # Decisions of the controller, with a built-in model.
    "a job": {"plain": True},
    "a job without recordings": {"plain": True, "comm.trace_buf_size": 0},
    "a job with LibTorch's operations": {"plain": True, "resources.kernels": "reference"},
    "a job on GPUs": {"plain": True, "resources.device": "cuda"},
    "a job of eight ranks": {"plain": True, "resources.ranks": 8},
    "a job of two ranks": {"plain": True, "resources.ranks": 2},
    "a job of Qwen3": {"plain": True, "model.name": "qwen3", "model.flavor": "debugmodel"},
}  # fmt: skip

# Runs whose output other runs start from.
PREPARATIONS = {"full": FULL, "hf": {**SAVES, "checkpoint.last_save_in_hf": True}}

OFF = "has no effect while"


def each(key, values, shown, situation="", text=""):
    return [(key, value, shown, situation, text) for value in values]


def keys(section, names, shown, situation="", text=""):
    return [(f"{section}.{name}", value, shown, situation, text) for name, value in names.items()]


ROWS = [
    ("job.config_file", "other.toml", "warned", "a job", "has no effect"),
    ("job.dump_folder", "/elsewhere", "record", "a job"),
    ("job.description", "another", "record", "a job"),
    ("job.print_config", True, "log"),
    ("job.save_config_file", "used.json", "files"),
    ("job.custom_config_module", "mine", "refused", "a job", "experimental.custom_import"),

    ("profiling.enable_profiling", True, "files", "a trace every step"),
    ("profiling.profile_freq", 2, "files", "traces"),
    ("profiling.save_traces_folder", "t", "files", "traces"),
    ("profiling.enable_memory_snapshot", True, "files", "a trace every step"),
    ("profiling.save_memory_snapshot_folder", "s", "files", "memory snapshots"),
    ("profiling.profile_freq", 1, "files", "memory snapshots"),
    *keys("profiling", {"save_traces_folder": "t", "profile_freq": 7, "profiler_active": 2, "profiler_warmup": 1,
                        "save_memory_snapshot_folder": "s"}, "warned", "a job", OFF),

    ("metrics.log_freq", 2, "rows"),
    ("metrics.enable_tensorboard", True, "files"),
    ("metrics.save_tb_folder", "curves", "files", "TensorBoard"),
    ("metrics.save_for_all_ranks", True, "files", "TensorBoard of two ranks"),
    ("metrics.enable_wandb", True, "files"),
    ("metrics.device_peak_tflops", 0.5, "log"),

    ("model.name", "small_qwen3", "loss"),
    ("model.flavor", "packed", "loss", "short documents"),
    ("model.attn_mask_type", "block_causal", "loss", "short documents"),
    ("model.attn_mask_type", "causal", "loss", "block-causal short documents"),
    ("model.hf_assets_path", "/nowhere", "facts"),
    *each("model.converters", ["quantize.linear.float8", "quantize.linear.mx"], "loss"),
    ("model.converters", "quantize.grouped_mm.float8", "loss", "experts selected for float8"),
    ("model.converters", "quantize.grouped_mm.mx", "refused", "a job", "names no experts"),
    ("model.converters", "lora", "loss"),
    ("model.load_balance_coeff", 0.5, "loss", "experts"),
    ("model.load_balance_coeff", 0.5, "refused", "a job", "has no experts"),
    ("model.print_after_conversion", True, "log", "float8 layers"),
    ("model.print_after_conversion", True, "warned", "a job", OFF),

    *each("optimizer.name", ["Adam", "Muon"], "loss"),
    *keys("optimizer", {"lr": 1e-3, "beta1": 0.5, "beta2": 0.5, "eps": 1e-2, "weight_decay": 0.9}, "loss"),
    ("optimizer.early_step_in_backward", True, "loss", "a small max_norm"),
    *each("optimizer.implementation", ["foreach", "for-loop"], "facts"),
    *each("optimizer.state_dtype", ["bfloat16", "8bit"], "loss"),
    ("optimizer.state_dtype", "float32", "bytes", "a dry run of bfloat16 parameters"),
    *each("optimizer.state_dtype", ["bfloat16", "8bit"], "bytes", "a dry run"),
    *each("optimizer.state_dtype", ["bfloat16", "8bit"], "events", "from another job's checkpoint"),
    ("optimizer.stochastic_rounding", True, "loss", "bfloat16 parameters"),
    *keys("optimizer", {"momentum": 0.5, "nesterov": False, "ns_steps": 2, "adjust_lr": "original"}, "loss", "Muon"),
    ("optimizer.momentum", 0.5, "warned", "a job", OFF),
    ("optimizer.qk_clip", 1e-3, "loss"),
    ("optimizer.qk_clip", 100, "refused", "a job of adapters", "are frozen under adapters"),
    ("optimizer.param_groups", '[{"pattern":"norm","weight_decay":0,"lr_factor":2}]', "loss"),
    ("optimizer.param_groups", '[{"pattern":"\\\\.w[123]\\\\.weight","name":"Muon"}]', "loss"),
    ("optimizer.param_groups", '[{"pattern":"atention"}]', "refused", "a job", "matches no parameter"),

    *keys("lr_scheduler", {"warmup_steps": 2, "total_steps": 9, "decay_ratio": 0.3, "min_lr_factor": 0.5}, "lr"),
    *each("lr_scheduler.decay_type", ["sqrt", "cosine"], "lr", "learning rate decay"),

    *each("training.dataset", ["c4_validation", "c4"], "loss"),  # The dataset c4 comes from a hub.
    ("training.dataset_path", "{data}", "loss"),
    *keys("training", {"local_batch_size": 1, "global_batch_size": 4, "seq_len": 16, "max_norm": 1e-3}, "loss"),
    ("training.max_norm", 0, "loss", "a small max_norm"),
    ("training.seq_len", 5000, "warned", "a job of Qwen3", "beyond the 4096 tokens"),
    ("training.steps", 4, "rows"),
    ("training.max_logits_mib", 1, "bytes", "a dry run of many tokens"),
    ("training.enable_cpu_offload", True, "bytes", "a dry run"),
    *each("training.dtype", ["float64", "bfloat16"], "loss"),
    ("training.mixed_precision_param", "bfloat16", "loss"),
    ("training.mixed_precision_param", "float32", "loss", "bfloat16"),
    *keys("training", {"gc_freq": 7, "gc_debug": True}, "warned", "a job", "has no effect"),
    ("training.nonfinite_policy", "skip", "facts", "a non-finite step"),
    ("training.read_step", "late", "recordings", "a non-finite step that is not logged"),
    ("training.read_step", "at_once", "recordings", "a non-finite step that is not logged, read late"),
    *keys("training.dataloader", {"num_workers": 2, "persistent_workers": True, "pin_memory": True, "prefetch_factor": 3}, "warned",
          "a job", "has no effect"),
    ("training.dataloader.order", "per_rank", "loss", "two ranks"),
    ("training.dataloader.max_bad_lines", 0, "facts", "damaged data"),
    ("training.dataloader.format", "text", "loss", "a folder of JSON lines and text"),
    *each("training.dataloader.format", ["jsonl", "parquet", "megatron", "titan"], "facts", "a folder of text files"),
    ("training.dataloader.text_key", "again", "loss", "a folder of JSON lines and text"),
    ("training.dataloader.text_documents", "blank_lines", "loss", "a folder of text files"),
    ("training.dataloader.sources", MIXED, "loss"),
    ("training.dataloader.sources", MIXED, "rows"),
    ("training.dataloader.shuffle", "documents", "loss", "short documents"),
    ("training.dataloader.shuffle", "rows", "facts", "short documents"),
    ("training.dataloader.shuffle_seed", 5, "loss", "shuffled documents"),
    ("training.dataloader.packing", "best_fit", "loss", "short documents"),
    ("training.dataloader.packing_window", 2, "loss", "packed documents"),

    ("parallelism.data_parallel_replicate_degree", 2, "traffic", "two ranks"),
    ("parallelism.data_parallel_shard_degree", 1, "refused", "a job of two ranks", "multiply to 1"),
    ("parallelism.data_parallel_shard_degree", 2, "refused", "a job", "multiply to 2"),
    ("parallelism.fsdp_reshard_after_forward", "never", "traffic", "two ranks"),
    ("parallelism.fsdp_reshard_after_forward", "always", "traffic", "a pipeline with FSDP"),
    ("parallelism.tensor_parallel_degree", 2, "traffic", "two ranks"),
    ("parallelism.enable_sequence_parallel", False, "traffic", "tensor parallelism"),
    ("parallelism.disable_loss_parallel", True, "traffic", "tensor parallelism"),
    ("parallelism.enable_async_tensor_parallel", True, "traffic", "tensor parallelism"),
    ("parallelism.pipeline_parallel_degree", 2, "traffic", "two ranks"),
    ("parallelism.module_fqns_per_model_part", '[["tok_embeddings","layers.0"],["layers.1","layers.2","layers.3","layers.4","layers.5",'
     '"norm","output"]]', "split", "a pipeline's dry run"),
    ("parallelism.pipeline_parallel_first_stage_less_layers", 3, "split", "a pipeline's dry run"),
    ("parallelism.pipeline_parallel_last_stage_less_layers", 3, "split", "a pipeline's dry run"),
    ("parallelism.pipeline_parallel_layers_per_stage", 1, "schedule", "two stages per rank"),
    *each("parallelism.pipeline_parallel_schedule", ["GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
                                                     "DualPipeV"], "schedule", "a pipeline of four microbatches"),
    *each("parallelism.pipeline_parallel_schedule", ["PipelineScheduleSingle", "PipelineScheduleMulti", "_PipelineScheduleRuntime"],
          "refused", "a pipeline", "does not define an order; set parallelism.pipeline_parallel_schedule_csv"),
    ("parallelism.pipeline_parallel_schedule_csv", "{csv}", "schedule", "a pipeline's dry run"),
    ("parallelism.pipeline_parallel_microbatch_size", 2, "schedule", "a pipeline's dry run"),
    ("parallelism.context_parallel_degree", 2, "traffic", "two ranks"),
    ("parallelism.context_parallel_load_balancer", "None", "loss", "context parallelism"),
    ("parallelism.context_parallel_load_balancer", "ptrr", "loss", "context parallelism and short documents"),
    ("parallelism.context_parallel_rotate_method", "alltoall", "traffic", "context parallelism"),
    ("parallelism.expert_parallel_degree", 2, "traffic", "experts on two ranks"),
    ("parallelism.expert_tensor_parallel_degree", 2, "traffic", "expert and tensor parallelism"),
    ("parallelism.expert_parallel_dispatcher", "allgather", "traffic", "expert parallelism"),
    ("parallelism.expert_parallel_comm_backend", "deepep", "warned", "expert parallelism", "the standard exchange"),

    ("checkpoint.enable", True, "files"),
    ("checkpoint.enable_ft_dataloader_checkpoints", False, "warned", "a job", OFF),
    ("checkpoint.folder", "saved", "files", "checkpoints"),
    ("checkpoint.interval", 1, "files", "checkpoints"),
    ("checkpoint.initial_load_path", "{full}/checkpoint/step-3", "loss", "checkpoints"),
    ("checkpoint.initial_load_model_only", False, "rows", "from another job's weights"),
    ("checkpoint.initial_load_model_only", True, "rows", "from another job's checkpoint"),
    ("checkpoint.initial_load_in_hf", True, "loss", "Hugging Face weights in the assets"),
    ("checkpoint.initial_load_in_hf_quantized", True, "events", "from Hugging Face weights"),
    ("checkpoint.last_save_model_only", False, "sizes", "checkpoints"),
    ("checkpoint.last_save_in_hf", True, "files", "checkpoints"),
    *each("checkpoint.export_dtype", ["bfloat16", "float16"], "sizes", "checkpoints"),
    ("checkpoint.async_mode", "async", "events", "checkpoints"),
    ("checkpoint.async_mode", "async_with_pinned_mem", "events", "checkpoints"),
    ("checkpoint.keep_latest_k", 2, "files", "full checkpoints"),
    ("checkpoint.load_step", 1, "rows", "after three steps"),
    *each("checkpoint.exclude_from_loading", ["model", "optimizer", "dataloader"], "loss", "from another job's checkpoint"),
    ("checkpoint.exclude_from_loading", "lr_scheduler", "lr", "from another job's checkpoint"),
    ("checkpoint.exclude_from_loading", "train_state", "tokens", "from another job's checkpoint"),
    ("checkpoint.enable_first_step_checkpoint", True, "files", "checkpoints"),
    ("checkpoint.create_seed_checkpoint", True, "files", "checkpoints"),
    ("checkpoint.load_only", True, "files", "checkpoints"),

    *each("activation_checkpoint.mode", ["selective", "full", "memory_budget"], "activations", "a dry run"),
    ("activation_checkpoint.mode", "none", "activations", "selective recomputation"),
    *each("activation_checkpoint.selective_ac_option", ["1", "3", "op"], "activations", "selective recomputation"),
    ("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "feed_forward.w1", "activations", "selective recomputation by operation"),
    ("activation_checkpoint.layers", "1", "activations", "full recomputation"),
    ("activation_checkpoint.memory_budget", 0.0, "activations", "a memory budget"),
    ("activation_checkpoint.visualize_memory_budget_pareto", True, "files", "a memory budget in training"),
    *keys("activation_checkpoint", {"early_stop": True, "preserve_rng_state": False, "determinism_check": "none", "debug": True},
          "warned", "a job", "has no effect"),

    ("compile.enable", True, "facts"),
    ("compile.enable", True, "warned", "a job with LibTorch's operations", OFF),
    *each("compile.components", ["model", "loss"], "facts", "kernels on GPUs"),
    *each("compile.components", ["model", "loss"], "warned", "a job", OFF),
    ("compile.graphs", "off", "facts", "kernels on GPUs"),
    ("compile.graphs", "off", "warned", "a job", OFF),
    ("compile.backend", "eager", "warned", "a job", "has no effect"),
    ("quantize.linear.float8.enable_fsdp_float8_all_gather", True, "traffic", "float8 layers on two ranks"),
    ("quantize.linear.float8.enable_fsdp_float8_all_gather", True, "warned", "a job of float8 layers", "no two ranks share a weight"),
    ("quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", True, "traffic", "float8 all-gathers"),
    ("quantize.linear.float8.filter_fqns", "wq", "loss", "float8 layers"),
    ("quantize.linear.float8.emulate", True, "log", "float8 layers"),
    ("quantize.linear.float8.scales_over", "tensor_ranks", "traffic", "float8 layers on two ranks"),
    ("quantize.linear.float8.scales_over", "all_ranks", "sent", "a dry run of float8 layers on two GPUs"),
    ("quantize.linear.float8.recipe_name", "tensorwise", "warned", "a job", OFF),
    *each("quantize.linear.float8.recipe_name", ["rowwise", "rowwise_with_gw_hp"], "loss", "float8 layers"),
    *each("quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", ["cuda", "torch"], "warned", "a job of MX layers", "there is one kernel"),
    ("quantize.linear.mx.recipe_name", "mxfp8_cublas_rceil", "loss", "MX layers"),
    ("quantize.linear.mx.recipe_name", "mxfp8_emulated", "log", "MX layers"),
    ("quantize.linear.mx.filter_fqns", "wq", "loss", "MX layers"),
    ("quantize.linear.mx.filter_fqns", "wq", "warned", "a job of float8 layers", "model.converters lacks quantize.linear.mx"),
    ("quantize.grouped_mm.float8.fqns", "experts", "loss", "no expert selected for float8"),
    ("quantize.grouped_mm.mx.fqns", "experts", "warned", "a job", OFF),

    *keys("lora", {"rank": 4, "alpha": 100, "targets": "wq"}, "loss", "adapters"),
    ("lora.dropout", 0.5, "refused", "a job of adapters", "not supported yet"),
    *each("lora.base", ["float32", "nf4"], "bytes", "a dry run of bfloat16 adapters"),
    ("lora.base", "bfloat16", "loss", "adapters"),

    *keys("comm", {"init_timeout_seconds": 77, "train_timeout_seconds": 77}, "record", "a job"),
    *each("comm.trace_buf_size", [3, 0], "recordings", "a non-finite step on two ranks"),
    *keys("comm", {"save_traces_folder": "t", "save_traces_file_prefix": "p"}, "recordings", "a non-finite step on two ranks"),
    *keys("comm", {"save_traces_folder": "t", "save_traces_file_prefix": "p"}, "warned", "a job without recordings", OFF),
    *each("comm.mode", ["local_tensor", "fake_backend"], "record", "a job of two ranks"),

    ("memory_estimation.enable", True, "record", "a job of two ranks"),
    ("memory_estimation.disable_fake_mode", True, "warned", "a job", "has no effect"),
    ("fault_tolerance.enable", True, "refused", "a job", "not supported yet"),
    *keys("fault_tolerance", {"process_group": "nccl", "process_group_timeout_ms": 7, "replica_id": 1, "group_size": 2,
                              "min_replica_size": 2, "sync_steps": 7, "should_quantize": True, "fragment_sync_delay": 1,
                              "fragment_update_alpha": 0.5, "module_fqns_per_model_fragment": "norm", "num_fragments": 2},
          "warned", "a job", OFF),
    *each("fault_tolerance.semi_sync_method", ["local_sgd", "diloco"], "warned", "a job", OFF),
    ("experimental.custom_import", "models.py", "refused", "a job", "expects a shared library"),
    ("experimental.custom_args_module", "mine", "refused", "a job", "experimental.custom_import"),

    ("validation.enable", True, "validation"),
    *each("validation.dataset", ["c4_test", "c4"], "validation", "validation"),
    ("validation.dataset_path", "{data}", "validation", "validation"),
    *keys("validation", {"local_batch_size": 2, "seq_len": 16, "freq": 3, "steps": 1}, "validation", "validation"),
    ("validation.sample_prompts", "The file", "log", "validation", "continues as"),
    ("validation.sample_max_new_tokens", 5, "log", "validation samples"),
    ("validation.sample_temperature", 3.0, "log", "validation samples"),
    *keys("validation.dataloader", {"num_workers": 2, "persistent_workers": True, "pin_memory": True, "prefetch_factor": 3}, "warned",
          "a job", "has no effect"),
    ("validation.dataloader.order", "per_rank", "validation", "validation of two ranks"),
    ("validation.dataloader.max_bad_lines", 0, "facts", "damaged validation data"),
    ("validation.dataloader.sources", MIXED, "validation", "validation"),
    ("validation.dataloader.shuffle", "documents", "validation", "validation of short documents"),
    ("validation.dataloader.shuffle", "rows", "facts", "validation of short documents"),
    ("validation.dataloader.shuffle_seed", 5, "validation", "validation of shuffled documents"),
    ("validation.dataloader.packing", "best_fit", "validation", "validation of short documents"),
    ("validation.dataloader.packing_window", 2, "validation", "validation of packed documents"),

    ("debug.seed", 1, "loss"),
    ("debug.deterministic", True, "facts"),
    ("debug.deterministic_warn_only", True, "facts", "deterministic mode"),
    ("debug.moe_force_load_balance", True, "experts", "experts"),

    ("resources.ranks", 2, "record", "a job"),
    ("resources.ranks_per_node", 2, "placement", "a job of eight ranks"),
    ("resources.device", "cuda", "placement", "a job"),
    ("resources.threads_per_rank", 2, "facts"),
    ("resources.kernels", "reference", "loss", "bfloat16 with AVX2 kernels"),
    ("resources.kernels", "avx2", "facts", "LibTorch's operations"),
    *each("resources.kernels", ["avx512", "avx512bf16", "amx"], "facts", "AVX2 kernels"),
    ("resources.kernels", "reference", "facts", "kernels on GPUs"),
    ("resources.kernels", "avx2", "warned", "a job on GPUs", OFF),
    *keys("restart", {"no_progress_limit": 5, "backoff_initial_seconds": 5, "backoff_max_seconds": 1}, "restarts", "a job"),
    *keys("restart", {"unreachable_grace_seconds": 7, "orphan_timeout_seconds": 7, "stop_grace_seconds": 7}, "record", "a job"),
    ("scheduling.priority", 5, "placement", "a job"),
    *keys("scheduling", {"project": "other", "job_id": "mine", "time_limit_seconds": 7}, "record", "a job"),
]  # fmt: skip

# Keys that another test covers, because they change only the order or time of work, or need a separate setup: (key, test, file).
ELSEWHERE = [
    ("job.umask", "test_launch_file_and_fence", "tests/worker/rank/runtime/titan_rank_test.py"),
    ("checkpoint.max_failed_saves", "ConsecutiveFailedSavesEndTheJob", "tests/worker/rank/checkpoint/checkpoint_test.cc"),
    ("profiling.profiler_active", "RecordsTheLastStepsOfARound", "tests/worker/rank/runtime/trace_test.cc"),
    ("profiling.profiler_warmup", "RecordsTheLastStepsOfARound", "tests/worker/rank/runtime/trace_test.cc"),
    ("metrics.disable_color_printing", "test_colours_are_for_terminals", "tests/worker/rank/runtime/titan_rank_test.py"),
    ("resources.expandable_segments", "SegmentsAreExpandableUnlessTheJobDisablesThem", "tests/worker/rank/device/allocator_settings_test.cc"),
    ("resources.pin_cpus", "TheKeyDecides", "tests/worker/rank/runtime/pinning_test.cc"),
    *[(f"comm.{key}", "CommunicatorsKnowTheirLimits", "tests/worker/rank/runtime/simulated_nccl_test.cc") for key in ("max_ctas", "message_max_ctas")],
    ("comm.shared_memory", "test_ranks_share_memory_or_not_with_the_same_numbers", "tests/worker/rank/runtime/titan_rank_test.py"),
    ("checkpoint.last_save_retry_seconds", "RetriesEndAtTheirTimeLimit", "tests/worker/rank/checkpoint/checkpoint_test.cc"),
    *[(f"checkpoint.{key}", "test_killed_training_resumes_bit_for_bit", "tests/worker/rank/checkpoint/s3_training_test.py")
      for key in ("folder", "initial_load_path")],
    ("parallelism.pipeline_parallel_expert_parallel_overlap", "PairsOverlapOnlyWithTheirKey", "tests/worker/rank/runtime/runtime_test.cc"),
    ("training.dataloader.prefetch", "OnlyPrefetchingStartsAThread", "tests/worker/rank/data/loader_test.cc"),
    *[(key, "test_trains_as_on_json_lines_and_resumes_on_other_ranks", "tests/worker/rank/data/dataset_plugin_test.py")
      for key in ("training.dataset", "experimental.custom_import")],
    *[(f"{section}.dataloader.{key}", "test_loss_of_packed_conversations", "tests/worker/rank/runtime/mixed_data_test.py")
      for section in ("training", "validation") for key in ("messages_key", "train_on")],
    *[(f"validation.dataloader.{key}", "ValidationReadsTheKindsOfFilesThatTrainingReads", "tests/worker/rank/runtime/runtime_test.cc")
      for key in ("format", "text_key", "text_documents")],
    ("validation.dataloader.prefetch", "OnlyPrefetchingStartsAThread", "tests/worker/rank/data/loader_test.cc"),
]

# Keys that accept only one value.
ONE_VALUE = {"training.mixed_precision_reduce", "quantize.grouped_mm.mx.recipe_name"}
