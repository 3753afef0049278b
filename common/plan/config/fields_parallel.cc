// Keys about how the model is split, recomputed, compiled and quantized; and the list of all sections.
#include "common/plan/config/fields.h"

namespace titan::config {

std::vector<Field> fields_of(ParallelismSection& c) {
  return {
      Field("data_parallel_replicate_degree", c.data_parallel_replicate_degree, "Full copies of the model (DDP, HSDP)")
          .in("ranks")
          .at_least(1),
      Field("data_parallel_shard_degree", c.data_parallel_shard_degree,
            "Ranks that share one copy (FSDP); -1 takes what the other axes leave")
          .in("ranks")
          .at_least(1)
          .or_value(-1),
      Field("fsdp_reshard_after_forward", c.fsdp_reshard_after_forward,
            "Free gathered parameters after the forward pass")
          .one_of({"default", "always", "never"}),
      Field("tensor_parallel_degree", c.tensor_parallel_degree, "Ranks that split each layer's matrices")
          .in("ranks")
          .at_least(1),
      Field("enable_sequence_parallel", c.enable_sequence_parallel,
            "Split activations on the sequence between tensor-parallel regions"),
      Field("disable_loss_parallel", c.disable_loss_parallel,
            "Gather the logits instead of computing the loss on shards"),
      Field("enable_async_tensor_parallel", c.enable_async_tensor_parallel,
            "Overlap tensor-parallel communication with the matmuls"),
      Field("pipeline_parallel_degree", c.pipeline_parallel_degree, "Ranks that hold consecutive groups of layers")
          .in("ranks")
          .at_least(1),
      Field("module_fqns_per_model_part", c.module_fqns_per_model_part, "Modules of each pipeline stage, in order"),
      Field("pipeline_parallel_first_stage_less_layers", c.pipeline_parallel_first_stage_less_layers,
            "How many fewer layers the first stage has, because of the embedding")
          .in("layers")
          .at_least(0),
      Field("pipeline_parallel_last_stage_less_layers", c.pipeline_parallel_last_stage_less_layers,
            "How many fewer layers the last stage has, because of the output")
          .in("layers")
          .at_least(0),
      Field("pipeline_parallel_layers_per_stage", c.pipeline_parallel_layers_per_stage, "Layers of each stage")
          .in("layers")
          .at_least(1),
      Field("pipeline_parallel_schedule", c.pipeline_parallel_schedule, "Order of forward and backward passes")
          .one_of({"1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
                   "DualPipeV", "PipelineScheduleSingle", "PipelineScheduleMulti", "_PipelineScheduleRuntime"})
          .in_any_case(),
      Field("pipeline_parallel_schedule_csv", c.pipeline_parallel_schedule_csv, "File with a custom schedule")
          .is_path(),
      Field("pipeline_parallel_microbatch_size", c.pipeline_parallel_microbatch_size,
            "Sequences per pipeline microbatch")
          .in("sequences")
          .at_least(1),
      Field("pipeline_parallel_expert_parallel_overlap", c.pipeline_parallel_expert_parallel_overlap,
            "Overlap expert communication with the other direction's passes (DualPipeV)"),
      Field("context_parallel_degree", c.context_parallel_degree, "Ranks that split each sequence")
          .in("ranks")
          .at_least(1),
      Field("context_parallel_load_balancer", c.context_parallel_load_balancer,
            "How the parts of a sequence are distributed: head and tail, or by attention's work; none keeps the order")
          .one_of({"headtail", "ptrr"}),
      Field("context_parallel_rotate_method", c.context_parallel_rotate_method, "How keys and values are exchanged")
          .one_of({"allgather", "alltoall"}),
      Field("expert_parallel_degree", c.expert_parallel_degree, "Ranks that split the experts").in("ranks").at_least(1),
      Field("expert_tensor_parallel_degree", c.expert_tensor_parallel_degree, "Ranks that split each expert's matrices")
          .in("ranks")
          .at_least(1),
      Field("expert_parallel_comm_backend", c.expert_parallel_comm_backend, "How tokens are sent to experts")
          .one_of({"standard", "deepep"}),
      Field("expert_parallel_dispatcher", c.expert_parallel_dispatcher,
            "How tokens reach experts: alltoall sends each row to its expert, once the host has read how many go "
            "where; allgather sends all tokens to all expert ranks, in sizes known beforehand, and reserves memory for "
            "all that could choose the experts of one rank")
          .one_of({"alltoall", "allgather"}),
  };
}

std::vector<Field> fields_of(ActivationCheckpointSection& c) {
  constexpr std::string_view kBlocks = "blocks are re-run as a whole by the engine itself, which has no such setting";
  return {
      Field("mode", c.mode, "Which activations are recomputed in the backward pass instead of being kept")
          .one_of({"selective", "full", "memory_budget", "none"}),
      Field("selective_ac_option", c.selective_ac_option,
            "For mode selective: a number N for every Nth layer, or \"op\"")
          .takes_number(),
      Field("layers", c.layers,
            "Indices of the layers to which the mode applies, from 0; the others keep all their activations. Empty: "
            "every layer")
          .at_least(0),
      Field("per_op_sac_force_recompute_mm_shapes_by_fqns", c.per_op_sac_force_recompute_mm_shapes_by_fqns,
            "For option \"op\": linear layers whose shape is always recomputed"),
      Field("early_stop", c.early_stop, "Stop a re-run when everything needed is there").without_effect(kBlocks),
      Field("memory_budget", c.memory_budget, "For mode memory_budget: share of the activations that is kept")
          .between(0, 1),
      Field("visualize_memory_budget_pareto", c.visualize_memory_budget_pareto,
            "Draw time against memory for all budgets"),
      Field("preserve_rng_state", c.preserve_rng_state, "Give a re-run the random state of the first run")
          .without_effect("no layer draws random numbers while training"),
      Field("determinism_check", c.determinism_check, "Compare a re-run with the first run").without_effect(kBlocks),
      Field("debug", c.debug, "Record what a re-run does").without_effect(kBlocks),
  };
}

std::vector<Field> fields_of(CompileSection& c) {
  return {
      Field(
          "enable", c.enable,
          "GPU ranks: Titan's own kernels for rows in bfloat16 instead of LibTorch's operations, and layers' passes as "
          "graphs of the device; CPU ranks choose kernels by resources.kernels; its value reference turns this off"),
      Field(
          "components", c.components,
          "Parts that use it: model, the layers (kernels of norms, rotations and gated activations; graphs); loss, the "
          "cross-entropy")
          .one_of({"model", "loss"}),
      Field("graphs", c.graphs,
            "Run layers' passes as graphs of the device, for component model: auto, wherever possible; off, nowhere")
          .one_of({"auto", "off"}),
      Field("backend", c.backend, "Python compiler backend").without_effect("nothing is compiled by a Python backend"),
  };
}

std::vector<Field> fields_of(Float8LinearSection& c) {
  return {
      Field("enable_fsdp_float8_all_gather", c.enable_fsdp_float8_all_gather,
            "Gather parameters as float8, one byte per element; with the tensorwise recipe"),
      Field("precompute_float8_dynamic_scale_for_fsdp", c.precompute_float8_dynamic_scale_for_fsdp,
            "One reduction for the scales of all gathered parameters after a step, instead of one per gather"),
      Field("recipe_name", c.recipe_name, "Scaling recipe; tensorwise when not set")
          .one_of({"tensorwise", "rowwise", "rowwise_with_gw_hp"}),
      Field("filter_fqns", c.filter_fqns,
            "Parts of the names of linear layers that stay in high precision; auto_filter_small_kn stands for layers "
            "too small to gain"),
      Field("emulate", c.emulate, "Compute with float8 numbers in high precision, as devices without float8 always do"),
      Field("scales_over", c.scales_over,
            "Numbers that a tensorwise scale covers: all_ranks, a microbatch's on all ranks, the same on every mesh; "
            "tensor_ranks, only those of the ranks that split its layers, as in torchao; auto, tensor_ranks on GPUs, "
            "where an exchange over all ranks at every product is slow, else all_ranks")
          .one_of({"auto", "all_ranks", "tensor_ranks"}),
  };
}

std::vector<Field> fields_of(MxLinearSection& c) {
  return {
      Field("mxfp8_dim1_cast_kernel_choice", c.mxfp8_dim1_cast_kernel_choice, "Kernel of the second quantization")
          .one_of({"triton", "cuda", "torch"})
          .without_effect("there is one kernel"),
      Field("recipe_name", c.recipe_name,
            "Scaling recipe: scales rounded down (mxfp8_cublas) or up (mxfp8_cublas_rceil), or like the first, but "
            "computed in high precision (mxfp8_emulated)")
          .one_of({"mxfp8_cublas", "mxfp8_cublas_rceil", "mxfp8_emulated"}),
      Field("filter_fqns", c.filter_fqns, "Parts of the names of linear layers that stay in high precision"),
  };
}

std::vector<Field> fields_of(Float8GroupedMmSection& c) {
  return {Field("fqns", c.fqns, "Parts of the names of experts whose products are float8, rowwise")};
}

std::vector<Field> fields_of(MxGroupedMmSection& c) {
  return {
      Field("recipe_name", c.recipe_name, "Scaling recipe").one_of({"mxfp8"}),
      Field("fqns", c.fqns, "Parts of the names of experts whose products are MXFP8"),
  };
}

std::vector<Field> fields_of(LoraSection& c) {
  return {
      Field("rank", c.rank, "Rank of an adapter: a layer of weights [out, in] gains A [rank, in] and B [out, rank]")
          .between(1, 4096),
      Field("alpha", c.alpha, "An adapter's part of a layer's output is scaled by alpha / rank").above_zero(),
      Field("dropout", c.dropout, "Share of an adapter's inputs that are dropped").between(0, 1),
      Field("targets", c.targets,
            "Linear layers with adapters: parts of their names between dots, * for any one part (attention, wq, "
            "layers.*.feed_forward.w1)"),
      Field("base", c.base,
            "Type of weights that are not trained: the type that layers compute in, another, or linear layers "
            "in 4 bits with a scale for every 64 (QLoRA)")
          .one_of({"compute", "float32", "bfloat16", "nf4"}),
  };
}

std::vector<Field> fields_of(MemoryEstimationSection& c) {
  return {
      Field("enable", c.enable, "Estimate memory instead of training"),
      Field("disable_fake_mode", c.disable_fake_mode, "Estimate with real tensors"),
  };
}

std::vector<Field> fields_of(FaultToleranceSection& c) {
  return {
      Field("enable", c.enable, "Replicas that join and leave while training"),
      Field("process_group", c.process_group, "Communication between replicas").one_of({"gloo", "nccl"}),
      Field("process_group_timeout_ms", c.process_group_timeout_ms, "Longest operation between replicas")
          .in("milliseconds")
          .at_least(1),
      Field("replica_id", c.replica_id, "Index of this replica").at_least(0),
      Field("group_size", c.group_size, "Number of replicas").at_least(0),
      Field("min_replica_size", c.min_replica_size, "A step needs this many replicas").at_least(1),
      Field("semi_sync_method", c.semi_sync_method, "Method by which replicas synchronize periodically")
          .one_of({"local_sgd", "diloco"}),
      Field("sync_steps", c.sync_steps, "Steps between two synchronizations").in("steps").at_least(1),
      Field("should_quantize", c.should_quantize, "Quantize what replicas exchange"),
      Field("fragment_sync_delay", c.fragment_sync_delay, "Steps between sending and applying a fragment")
          .in("steps")
          .at_least(0),
      Field("fragment_update_alpha", c.fragment_update_alpha, "Share of the local parameters in the merge")
          .between(0, 1),
      Field("module_fqns_per_model_fragment", c.module_fqns_per_model_fragment, "Modules of each fragment"),
      Field("num_fragments", c.num_fragments, "Number of fragments").at_least(1),
  };
}

std::vector<Field> fields_of(ExperimentalSection& c) {
  return {
      Field("custom_import", c.custom_import,
            "Shared library (.so) with custom models (docs/howto/add-a-model.md) or datasets "
            "(docs/howto/add-a-dataset.md)")
          .is_path(),
      Field("custom_args_module", c.custom_args_module, "Python module that extends the configuration"),
  };
}

std::vector<Section> sections(JobConfig& c) {
  return {
      {"job", "Where a job writes and what it is called", fields_of(c.job)},
      {"profiling", "Profiler traces and memory snapshots", fields_of(c.profiling)},
      {"metrics", "What is reported while training", fields_of(c.metrics)},
      {"model", "The model and its assets", fields_of(c.model)},
      {"model.override", "Numbers of the model in place of those of its flavor", fields_of(c.model.overrides), true},
      {"model.override.rope_scaling", "Llama 3.1's scaling of RoPE (rope_type = \"llama3\")",
       fields_of(c.model.overrides.rope_scaling), true},
      {"model.override.yarn", "YaRN (rope_type = \"yarn\")", fields_of(c.model.overrides.yarn), true},
      {"model.override.moe", "Experts", fields_of(c.model.overrides.moe), true},
      {"optimizer", "The optimizer", fields_of(c.optimizer)},
      {"lr_scheduler", "Learning rate: warmup, stable phase, decay", fields_of(c.lr_scheduler)},
      {"training", "Data, batch, length and precision", fields_of(c.training)},
      {"training.dataloader", "How training data is read", fields_of(c.training.dataloader)},
      {"encoder", "The frozen encoders of captions and images, for flux", fields_of(c.encoder)},
      {"data", "Images in the rows of the models vlm and qwen3_vl", fields_of(c.data)},
      {"parallelism", "The mesh: degrees multiply to resources.ranks", fields_of(c.parallelism)},
      {"checkpoint", "Saving and loading", fields_of(c.checkpoint)},
      {"activation_checkpoint", "Recomputation of activations: less memory, more time",
       fields_of(c.activation_checkpoint)},
      {"compile", "Fused kernels and device graphs", fields_of(c.compile)},
      {"quantize.linear.float8", "Float8 linear layers", fields_of(c.quantize.linear.float8)},
      {"quantize.linear.mx", "MXFP8 linear layers", fields_of(c.quantize.linear.mx)},
      {"quantize.grouped_mm.float8", "Float8 experts", fields_of(c.quantize.grouped_mm.float8)},
      {"quantize.grouped_mm.mx", "MXFP8 experts", fields_of(c.quantize.grouped_mm.mx)},
      {"lora", "Low-rank adapters on a frozen model; model.converters = [\"lora\"] turns them on", fields_of(c.lora)},
      {"comm", "Timeouts and tracing of collectives", fields_of(c.comm)},
      {"memory_estimation", "Estimate of the memory, without training", fields_of(c.memory_estimation)},
      {"fault_tolerance", "Elastic replicas", fields_of(c.fault_tolerance)},
      {"experimental", "Libraries with custom models and datasets", fields_of(c.experimental)},
      {"validation", "Loss on other data while training", fields_of(c.validation)},
      {"validation.dataloader", "How validation data is read", fields_of(c.validation.dataloader)},
      {"inference", "Images from a file of prompts, for flux", fields_of(c.inference)},
      {"debug", "Seeds and determinism", fields_of(c.debug)},
      {"resources", "Size of the job", fields_of(c.resources)},
      {"restart", "When a failed job is started again", fields_of(c.restart)},
      {"scheduling", "Name and place in the queue", fields_of(c.scheduling)},
  };
}

}  // namespace titan::config
