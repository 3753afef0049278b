#include "common/plan/config/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/load.h"
#include "common/plan/config/support.h"
#include "common/plan/config/validate.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using ::testing::HasSubstr;

// Sets the field to a valid value other than its default.
void change(const Field& field) {
  struct Changer {
    const Field& field;
    void operator()(bool* v) const { *v = !*v; }
    void operator()(int* v) const { *v = *v < 1 ? 2 : *v + 1 <= field.maximum ? *v + 1 : *v - 1; }
    void operator()(std::int64_t* v) const { *v = std::max<std::int64_t>(*v + 3, 1); }
    void operator()(double* v) const { *v = *v * 0.75 + 0.001; }
    void operator()(std::string* v) const {
      *v = field.allowed.empty()
               ? "odd \"text\" \\ \x7f \t\xc3\xa4"
               : std::string(field.allowed.back() == *v ? field.allowed.front() : field.allowed.back());
    }
    void operator()(std::optional<std::int64_t>* v) const {
      *v = field.minimum > 11 ? static_cast<std::int64_t>(field.minimum) : 11;
    }
    void operator()(std::optional<double>* v) const { *v = 0.3; }
    void operator()(std::optional<std::string>* v) const {
      v->has_value() ? v->reset() : void(*v = field.allowed.empty() ? "a/b" : std::string(field.allowed.front()));
    }
    void operator()(std::vector<std::string>* v) const {
      v->push_back(field.allowed.empty() ? "layers.0" : std::string(field.allowed.back()));
    }
    void operator()(std::vector<std::int64_t>* v) const { *v = {2, 0, 5}; }
    void operator()(std::optional<StringLists>* v) const { *v = StringLists{{"tok_embeddings", "layers.0"}, {"norm"}}; }
    void operator()(std::optional<bool>* v) const { *v = false; }
    void operator()(std::optional<int>* v) const { *v = 7; }
    void operator()(std::vector<ParamGroup>* v) const {
      v->push_back({.pattern = R"(^layers\.\d+\.(attention|"x")\.w)", .name = "Muon", .lr = 0.02, .nesterov = false});
      v->push_back({.pattern = "norm", .lr_factor = 0.5, .weight_decay = 0, .ns_steps = 3});
    }
    void operator()(std::vector<DataSource>* v) const {
      v->push_back(
          {.name = "web", .dataset_path = "/data/\"web\"", .weight = 0.7, .weight_at_step = {"10: 0.5", "20: 0"}});
      v->push_back({.name = "code", .dataset = "c4_test", .repeat = false, .format = "parquet", .text_key = "content"});
      v->push_back({.name = "chat", .dataset_path = "/data/chat", .messages_key = "turns", .train_on = "all"});
    }
  };
  std::visit(Changer{field}, field.ref);
}

JobConfig changed_everywhere() {
  JobConfig config;
  for (const Section& section : sections(config)) {
    for (const Field& field : section.fields) change(field);
  }
  return config;
}

TEST(JsonTest, TextEqualsTheTreesDump) {
  EXPECT_EQ(to_json_text(changed_everywhere()), to_json(changed_everywhere()).dump());
  nlohmann::json defaults = to_json(JobConfig());
  ASSERT_TRUE(defaults["model"]["override"]["dim"].is_null());
  defaults["model"].erase("override");  // Nothing is set there.
  EXPECT_EQ(to_json_text(JobConfig()), defaults.dump());
  JobConfig one;
  one.model.overrides.yarn.factor = 4;
  defaults["model"]["override"]["yarn"]["factor"] = 4.0;
  EXPECT_EQ(to_json_text(one), defaults.dump());
}

TEST(JsonTest, EveryKeySurvivesJsonTomlAndYaml) {
  for (const JobConfig& config : {JobConfig(), changed_everywhere()}) {
    const nlohmann::json json = to_json(config);
    const auto back = from_json(json);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(to_json(*back), json);
    // JSON text is also YAML, and JSON is a format too.
    for (const auto& [format, text] : std::map<ConfigFormat, std::string>{{ConfigFormat::kJson, json.dump(2)},
                                                                          {ConfigFormat::kToml, to_toml(config)}}) {
      const auto loaded = load_text(text, format, "a");
      ASSERT_TRUE(loaded.ok()) << loaded.status().message() << text;
      EXPECT_EQ(to_json(loaded->config), json);
    }
  }
  const nlohmann::json changed = to_json(changed_everywhere()), defaults = to_json(JobConfig());
  for (const auto& [section, keys] : changed.items()) EXPECT_NE(keys, defaults[section]);
  EXPECT_EQ(to_toml(JobConfig(), true), "");
}

TEST(JsonTest, OnlyChangedTomlIsShort) {
  JobConfig config;
  config.training.steps = 3;
  config.quantize.linear.float8.filter_fqns = {"output"};
  EXPECT_EQ(to_toml(config, true), "[training]\nsteps = 3\n\n[quantize.linear.float8]\nfilter_fqns = [\"output\"]\n");
}

TEST(JsonTest, RefusesUnknownButAllowsMissingMembers) {
  EXPECT_EQ(from_json({{"training", {{"steps", 5}}}})->training.steps, 5);
  const absl::Status unknown = from_json({{"training", {{"stepz", 5}}}, {"model", {{"name", 3}}}}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("training.stepz = 5: unknown key; did you mean training.steps?"));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("model.name = 3: expects a string"));
  EXPECT_FALSE(from_json(nlohmann::json::array()).ok());
  EXPECT_FALSE(from_json({{"modle", nlohmann::json::object()}}).ok());
  EXPECT_TRUE(from_json({{"model", nlohmann::json::object()}}).ok());
  EXPECT_TRUE(from_json(nlohmann::json::object()).ok());
}

// torchtitan 0.2.2's defaults, key by key; torchtitan_oracle_test.py compares with the real package.
TEST(DefaultsTest, MatchTorchtitan) {
  const nlohmann::json json = nlohmann::json::parse(to_json_text(JobConfig()));
  const nlohmann::json expected = nlohmann::json::parse(R"({
    "job": {"config_file": null, "dump_folder": "./outputs", "description": "default job", "print_config": false,
            "save_config_file": null, "custom_config_module": "", "umask": ""},
    "profiling": {"enable_profiling": false, "save_traces_folder": "profile_traces", "profile_freq": 10, "profiler_active": 1,
                  "profiler_warmup": 3, "enable_memory_snapshot": false, "save_memory_snapshot_folder": "memory_snapshot"},
    "metrics": {"log_freq": 10, "enable_tensorboard": false, "disable_color_printing": false, "save_tb_folder": "tb",
                "save_for_all_ranks": false, "enable_wandb": false, "device_peak_tflops": null},
    "model": {"name": "llama3", "flavor": "debugmodel", "attn_mask_type": null, "hf_assets_path": "./tests/assets/tokenizer", "converters": [],
              "print_after_conversion": false, "load_balance_coeff": null, "spec": null},
    "optimizer": {"name": "AdamW", "lr": 8e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1,
                  "implementation": "fused", "early_step_in_backward": false, "state_dtype": "auto", "stochastic_rounding": false,
                  "momentum": 0.95, "nesterov": true, "ns_steps": 5, "adjust_lr": "match_rms_adamw", "qk_clip": 0.0, "param_groups": []},
    "lr_scheduler": {"warmup_steps": 200, "total_steps": null, "decay_ratio": null, "decay_type": "linear", "min_lr_factor": 0.0},
    "training": {"dataset": "c4_test", "dataset_path": null, "local_batch_size": 8, "global_batch_size": -1, "seq_len": 2048,
                 "max_logits_mib": -1, "max_norm": 1.0, "steps": 10000, "enable_cpu_offload": false, "dtype": "float32",
                 "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32", "gc_freq": 50, "gc_debug": false,
                 "nonfinite_policy": "fail", "read_step": "auto", "classifier_free_guidance_prob": 0.0, "guidance_scale": 1.0, "img_size": 256,
                 "test_mode": false,
                 "dataloader": {"num_workers": 0, "persistent_workers": false, "pin_memory": false, "prefetch_factor": null,
                                "order": "global", "prefetch": 2, "max_bad_lines": 100, "format": "auto",
                                "text_key": "text", "messages_key": "", "train_on": "assistant", "text_documents": "file", "sources": [], "shuffle": "none", "shuffle_seed": 0, "packing": "concatenate",
                                  "packing_window": 1024, "max_bad_samples": 100, "image_key": "", "caption_key": "",
                                  "decode_threads": 2}},
    "encoder": {"t5_encoder": "google/t5-v1_1-small", "clip_encoder": "openai/clip-vit-large-patch14",
                "autoencoder_path": "torchtitan/experiments/flux/assets/autoencoder/ae.safetensors",
                "max_t5_encoding_len": 256, "dtype": "auto", "t5_weights": "dtype", "shard_t5": true},
    "data": {"max_images_per_batch": 10, "max_patches_per_image": 256, "patch_size": 16, "spatial_merge_size": 1,
             "packing_buffer_size": 0, "balance_images": false},
    "parallelism": {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "default",
                    "tensor_parallel_degree": 1, "enable_sequence_parallel": true, "disable_loss_parallel": false,
                    "enable_async_tensor_parallel": false, "pipeline_parallel_degree": 1, "module_fqns_per_model_part": null,
                    "pipeline_parallel_first_stage_less_layers": 1, "pipeline_parallel_last_stage_less_layers": 1,
                    "pipeline_parallel_layers_per_stage": null, "pipeline_parallel_schedule": "1F1B",
                    "pipeline_parallel_schedule_csv": "", "pipeline_parallel_microbatch_size": 1,
                    "pipeline_parallel_expert_parallel_overlap": true, "context_parallel_degree": 1,
                    "context_parallel_load_balancer": "headtail", "context_parallel_rotate_method": "allgather",
                    "expert_parallel_degree": 1, "expert_tensor_parallel_degree": 1, "expert_parallel_comm_backend": "standard",
                    "expert_parallel_dispatcher": "alltoall"},
    "checkpoint": {"enable": false, "enable_ft_dataloader_checkpoints": true, "folder": "checkpoint", "interval": 500,
                   "initial_load_path": null, "initial_load_model_only": true, "initial_load_in_hf": false,
                   "initial_load_in_hf_quantized": false, "initial_load_vision_path": null, "last_save_model_only": true, "last_save_in_hf": false,
                   "export_dtype": "float32", "async_mode": "disabled", "keep_latest_k": 10, "load_step": -1,
                   "exclude_from_loading": [], "enable_first_step_checkpoint": false, "create_seed_checkpoint": false,
                   "load_only": false, "max_failed_saves": 3, "last_save_retry_seconds": 1800.0},
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2",
                              "per_op_sac_force_recompute_mm_shapes_by_fqns": ["moe.router.gate"], "early_stop": false,
                              "memory_budget": 0.5, "visualize_memory_budget_pareto": false, "preserve_rng_state": true,
                              "determinism_check": "default", "debug": false, "layers": []},
    "compile": {"enable": false, "components": ["model", "loss"], "graphs": "auto", "backend": "inductor"},
    "quantize": {"linear": {"float8": {"enable_fsdp_float8_all_gather": false, "precompute_float8_dynamic_scale_for_fsdp": false,
                                       "recipe_name": null, "filter_fqns": [], "emulate": false, "scales_over": "auto"},
                            "mx": {"mxfp8_dim1_cast_kernel_choice": "triton", "recipe_name": "mxfp8_cublas", "filter_fqns": ["output"]}},
                 "grouped_mm": {"float8": {"fqns": []}, "mx": {"recipe_name": "mxfp8", "fqns": []}}},
    "lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": ["attention", "feed_forward", "shared_experts"],
             "base": "compute"},
    "comm": {"init_timeout_seconds": 300, "train_timeout_seconds": 100, "trace_buf_size": 20000, "save_traces_folder": "comm_traces",
             "save_traces_file_prefix": "rank_", "shared_memory": true, "max_ctas": 0, "message_max_ctas": 4,
             "mode": "default"},
    "memory_estimation": {"enable": false, "disable_fake_mode": false},
    "fault_tolerance": {"enable": false, "process_group": "gloo", "process_group_timeout_ms": 10000, "replica_id": 0,
                        "group_size": 0, "min_replica_size": 1, "semi_sync_method": null, "sync_steps": 5,
                        "should_quantize": false, "fragment_sync_delay": 0, "fragment_update_alpha": 0.0,
                        "module_fqns_per_model_fragment": [], "num_fragments": 1},
    "experimental": {"custom_import": "", "custom_args_module": ""},
    "validation": {"enable": false, "dataset": "c4_validation", "dataset_path": null, "local_batch_size": 8, "seq_len": 2048,
                   "freq": 10, "steps": -1, "sample_prompts": [], "sample_max_new_tokens": 64, "sample_temperature": 0.0,
                   "enable_classifier_free_guidance": false, "classifier_free_guidance_scale": 5.0, "denoising_steps": 50,
                   "eval_freq": 100, "save_img_count": 1, "save_img_folder": "img", "all_timesteps": false,
                   "dataloader": {"num_workers": 0, "persistent_workers": false, "pin_memory": false, "prefetch_factor": null,
                                  "order": "global", "prefetch": 2, "max_bad_lines": 100, "format": "auto",
                                "text_key": "text", "messages_key": "", "train_on": "assistant", "text_documents": "file", "sources": [], "shuffle": "none", "shuffle_seed": 0, "packing": "concatenate",
                                  "packing_window": 1024, "max_bad_samples": 100, "image_key": "", "caption_key": "",
                                  "decode_threads": 2}},
    "inference": {"save_img_folder": "inference_results",
                  "prompts_path": "./torchtitan/experiments/flux/inference/prompts.txt", "local_batch_size": 2,
                  "img_size": null},
    "debug": {"seed": null, "deterministic": false, "deterministic_warn_only": false, "moe_force_load_balance": false},
    "resources": {"ranks": 1, "ranks_per_node": 0, "device": "cpu", "threads_per_rank": 0, "kernels": "auto",
                  "expandable_segments": true, "pin_cpus": "auto"},
    "restart": {"no_progress_limit": 3, "backoff_initial_seconds": 1.0, "backoff_max_seconds": 60.0,
                "unreachable_grace_seconds": 60.0, "orphan_timeout_seconds": 600.0, "stop_grace_seconds": 30.0},
    "scheduling": {"priority": 0, "project": "default", "job_id": "", "time_limit_seconds": 0}
  })");
  EXPECT_EQ(json, expected) << nlohmann::json::diff(expected, json).dump(1);
  EXPECT_TRUE(validate(JobConfig()).ok()) << validate(JobConfig()).message();
}

TEST(SchemaTest, DescribesEveryKeyAndHelpNamesIt) {
  const nlohmann::json schema = json_schema();
  const std::string text = help();
  JobConfig config;
  for (const Section& section : sections(config)) {
    std::string pointer = "/properties/" + std::string(section.name);
    for (std::size_t dot; (dot = pointer.find('.')) != pointer.npos;) pointer.replace(dot, 1, "/properties/");
    for (const Field& field : section.fields) {
      const std::string key(field.key);
      SCOPED_TRACE(absl::StrCat(std::string(section.name), ".", key));
      const auto& entry = schema.at(nlohmann::json::json_pointer(absl::StrCat(pointer, "/properties/", key)));
      EXPECT_TRUE(entry.contains("type") && entry.contains("default") && entry.contains("description"));
      EXPECT_THAT(text, HasSubstr(absl::StrCat("--", std::string(section.name), ".", key, " ")));
    }
  }
  EXPECT_EQ(schema["properties"]["training"]["properties"]["steps"]["minimum"], 1);
  EXPECT_EQ(schema["properties"]["optimizer"]["properties"]["name"]["enum"], nlohmann::json({"AdamW", "Adam", "Muon"}));
  EXPECT_THAT(help("training"), HasSubstr("[training.dataloader]"));
  EXPECT_THAT(help("training"), ::testing::Not(HasSubstr("[validation")));
}

// The table of unsupported features names real keys, and every row rejects a value.
TEST(SupportTest, EveryRowRefusesItsKeyByName) {
  JobConfig config;
  std::map<std::string, Field> fields;
  for (const Section& section : sections(config)) {
    for (const Field& field : section.fields)
      fields.emplace(std::string(section.name) + "." + std::string(field.key), field);
  }
  for (const Unsupported& row : unsupported()) {
    const std::string key(row.key);
    ASSERT_TRUE(fields.count(key)) << key;
    config = JobConfig();
    change(fields.at(key));
    const std::string message(validate(config).message());
    EXPECT_THAT(message, HasSubstr(key + " = "));
    const std::string why = row.instead.empty() ? "not supported yet" : std::string(row.instead);
    EXPECT_THAT(message, HasSubstr(why + "; set " + key + " = "));
  }
  for (const IgnoredFeature& row : ignored_features()) EXPECT_TRUE(fields.count(std::string(row.key))) << row.key;
  for (const DependentKey& detail : dependent_keys()) {
    EXPECT_TRUE(fields.count(std::string(detail.switch_key))) << detail.switch_key;
    const bool whole_section = detail.key.back() == '.';
    EXPECT_TRUE(whole_section || fields.count(std::string(detail.key))) << detail.key;
  }
}

TEST(ResolveTest, MemoryIsEstimatedByADryRun) {
  JobConfig config;
  resolve(config);
  EXPECT_EQ(config.comm.mode, "default");
  config.memory_estimation.enable = true;
  EXPECT_TRUE(validate(config).ok());
  resolve(config);
  EXPECT_EQ(config.comm.mode, "fake_backend");
}

TEST(ResolveTest, FillsValuesThatFollowFromTheRanks) {
  JobConfig config;
  config.resources.ranks = 8;
  config.parallelism.data_parallel_replicate_degree = 2;
  config.training.local_batch_size = 3;
  ASSERT_TRUE(validate(config).ok()) << validate(config).message();
  resolve(config);
  EXPECT_EQ(config.parallelism.data_parallel_shard_degree, 4);
  EXPECT_EQ(config.training.global_batch_size, -1) << "nobody set it: a resumed job keeps its checkpoint's";
  EXPECT_EQ(batch_degree(config), 8);
  EXPECT_EQ(global_batch(config), 24);
  EXPECT_EQ(accumulation_steps(config), 1);
  config.training.global_batch_size = 48;
  resolve(config);
  EXPECT_EQ(config.training.global_batch_size, 48);
  EXPECT_EQ(accumulation_steps(config), 2);
  EXPECT_TRUE(validate(config).ok());
}

TEST(ResolveTest, GpusComputeMoreLogitsAtOnce) {
  JobConfig config;
  config.resources.device = "cpu";
  EXPECT_EQ(max_logit_bytes(config), int64_t{64} << 20);
  config.resources.device = "cuda";
  EXPECT_EQ(max_logit_bytes(config), int64_t{2} << 30);
  config.training.max_logits_mib = 7;
  EXPECT_EQ(max_logit_bytes(config), int64_t{7} << 20);
  config.training.max_logits_mib = 0;
  EXPECT_EQ(max_logit_bytes(config), 0);
}

}  // namespace
}  // namespace titan::config
