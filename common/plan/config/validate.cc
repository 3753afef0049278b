#include "common/plan/config/validate.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host/file_mask.h"
#include "common/base/text/home.h"
#include "common/base/text/nearest.h"
#include "common/io/hub/names.h"
#include "common/io/s3/location.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/raw.h"
#include "common/plan/config/support.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/update_rules.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"

namespace titan::config {
namespace {

std::optional<models::ModelSpec> check_model(Checker& check) {
  const ModelSection& model = check.config().model;
  const std::string& library = check.config().experimental.custom_import;
  if (!library.empty() && !absl::EndsWith(library, ".so")) {
    check.fail("experimental.custom_import", library, "expects a shared library (.so) with models or datasets",
               "Python modules cannot be loaded; docs/howto/add-a-model.md shows such a library");
  }
  absl::StatusOr<models::ModelSpec> spec = resolve_model(model);
  if (!spec.ok() && (model.flavor == kConfigFlavor || models::find(model.name, model.flavor).ok())) {
    check.fail_as("model", "", spec.status());
    return std::nullopt;
  }
  if (!spec.ok()) {
    // A library may define any model name; only a rank, which loads it, knows them.
    if (!library.empty() && models::flavors(model.name).empty()) return std::nullopt;
    const bool known = !models::flavors(model.name).empty();
    check.fail_as(known ? "model.flavor" : "model.name", known ? model.flavor : model.name, spec.status());
    return std::nullopt;
  }
  return *spec;
}

void check_balance(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const ModelSection& model = check.config().model;
  if (!model.load_balance_coeff) return;
  const double coefficient = *model.load_balance_coeff;
  if (spec && !spec->moe) {
    check.fail("model.load_balance_coeff", coefficient,
               absl::StrCat("has no effect: ", model.name, " ", model.flavor, " has no experts"), "leave it out");
  } else if (coefficient > 0 && adapters_of(check.config())) {
    check.fail("model.load_balance_coeff", coefficient, "has no effect: with the converter lora only adapters change",
               "leave it out");
  }
}

void check_resources(Checker& check) {
  const ResourcesSection& resources = check.config().resources;
  if (resources.ranks_per_node > 0 && resources.ranks % resources.ranks_per_node != 0) {
    check.fail("resources.ranks_per_node", resources.ranks_per_node,
               absl::StrCat("does not divide resources.ranks ", resources.ranks),
               "all nodes of a job hold the same number of ranks");
  }
  const std::string& mode = check.config().comm.mode;
  if (mode == "local_tensor" && resources.device != "cpu") {
    check.fail("resources.device", resources.device,
               "comm.mode = \"local_tensor\" runs all ranks as threads on the CPU", "use cpu");
  }
}

void check_profiling(Checker& check) {
  const ProfilingSection& profiling = check.config().profiling;
  const int traced = profiling.profiler_warmup + profiling.profiler_active;
  if (!profiling.enable_profiling || profiling.profile_freq >= traced) return;
  check.fail("profiling.profile_freq", profiling.profile_freq,
             absl::StrCat("is less than the ", profiling.profiler_warmup, " + ", profiling.profiler_active,
                          " steps of profiling.profiler_warmup and profiler_active that make a trace"),
             absl::StrCat("use ", traced, " or more"));
}

void check_schedules(Checker& check) {
  const OptimizerSection& optimizer = check.config().optimizer;
  if (optimizer.beta1 == 1) check.fail("optimizer.beta1", optimizer.beta1, "must be below 1", "");
  if (optimizer.beta2 == 1) check.fail("optimizer.beta2", optimizer.beta2, "must be below 1", "");
  const auto& total = check.config().lr_scheduler.total_steps;
  if (const std::int64_t steps = check.config().training.steps; total.has_value() && *total < steps) {
    check.fail("lr_scheduler.total_steps", *total,
               absl::StrCat("is below training.steps ", steps, ": the learning rate would become negative"),
               absl::StrCat("use at least ", steps, " or leave it out"));
  }
  const RestartSection& restart = check.config().restart;
  if (restart.backoff_max_seconds < restart.backoff_initial_seconds) {
    check.fail("restart.backoff_max_seconds", restart.backoff_max_seconds,
               absl::StrCat("is below restart.backoff_initial_seconds ", restart.backoff_initial_seconds), "");
  }
}

// Only a rank knows the parameters of a library's model, and checks again.
void check_param_groups(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  const OptimizerSection& optimizer = config.optimizer;
  if (optimizer.momentum == 1) check.fail("optimizer.momentum", optimizer.momentum, "must be below 1", "");
  const auto trained =
      spec ? models::trained_tensors(*spec, adapters_of(config)) : std::vector<models::ParameterSpec>();
  const auto problems = trained.empty() ? check_groups(optimizer) : check_groups(optimizer, trained);
  for (const GroupProblem& problem : problems)
    check.fail("optimizer.param_groups", problem.value, problem.message, problem.suggestion);
}

// Returns whether a name begins with a list of transformer blocks. Flux has two kinds of them.
bool is_in_block(const std::string& fqn) {
  return absl::StartsWith(fqn, "layers.") || absl::StartsWith(fqn, "double_blocks.") ||
         absl::StartsWith(fqn, "single_blocks.");
}

// Returns linear layers inside transformer blocks: "layers.0.attention.wq", ...
std::vector<std::string> linear_layers(const models::ModelSpec& spec) {
  std::vector<std::string> names;
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    if (tensor.shape.size() != 2 || !is_in_block(tensor.fqn)) continue;
    names.push_back(tensor.fqn.substr(0, tensor.fqn.rfind('.')));
  }
  return names;
}

// A misspelt name would silently not be recomputed. Default names that a dense model lacks are not an error.
void check_recomputed_layers(Checker& check, const models::ModelSpec& spec) {
  const auto& parts = check.config().activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns;
  const auto standard = ActivationCheckpointSection().per_op_sac_force_recompute_mm_shapes_by_fqns;
  const std::vector<std::string> layers = linear_layers(spec);
  for (const std::string& part : parts) {
    const auto names = [&](const std::string& layer) { return absl::StrContains(layer, part); };
    if (std::any_of(layers.begin(), layers.end(), names)) continue;
    if (std::find(standard.begin(), standard.end(), part) != standard.end()) continue;
    std::vector<std::string> inner;  // "attention.wq", or whole names if `part` names one layer.
    for (const std::string& layer : layers) {
      std::string name = is_in_block(part) ? layer : layer.substr(layer.find('.', layer.find('.') + 1) + 1);
      if (std::find(inner.begin(), inner.end(), name) == inner.end()) inner.push_back(std::move(name));
    }
    const std::string near = nearest(part, inner);
    check.fail("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", part,
               absl::StrCat("matches no linear layer of ", spec.name, " ", spec.flavor),
               near.empty() ? absl::StrCat("use part of a name such as ", inner.empty() ? "attention" : inner.front())
                            : absl::StrCat("did you mean \"", near, "\"?"));
  }
}

void check_listed_layers(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const ActivationCheckpointSection& ac = check.config().activation_checkpoint;
  const std::string key = "activation_checkpoint.layers";
  if (!ac.layers.empty() && ac.mode == "none") {
    check.fail(key, absl::StrCat("[", absl::StrJoin(ac.layers, ", "), "]"),
               "names layers, but activation_checkpoint.mode = \"none\" recomputes nothing",
               "set activation_checkpoint.mode = \"full\", or leave the layers out");
  }
  std::set<std::int64_t> seen;
  for (const std::int64_t layer : ac.layers) {
    if (!seen.insert(layer).second) check.fail(key, layer, "is named twice", "");
    if (!spec.has_value() || layer < spec->n_layers) continue;
    check.fail(key, layer, absl::StrCat("is not a layer of ", spec->name, " ", spec->flavor),
               absl::StrCat("it has ", spec->n_layers, " layers, 0 to ", spec->n_layers - 1));
  }
}

void check_activation_checkpoint(Checker& check, const std::optional<models::ModelSpec>& spec) {
  check_listed_layers(check, spec);
  const ActivationCheckpointSection& ac = check.config().activation_checkpoint;
  if (ac.mode != "selective") return;
  int every = 0;
  if (ac.selective_ac_option == "op") {
    if (spec.has_value()) check_recomputed_layers(check, *spec);
  } else if (!absl::SimpleAtoi(ac.selective_ac_option, &every) || every < 0) {
    check.fail("activation_checkpoint.selective_ac_option", ac.selective_ac_option,
               "expects a number N (every Nth layer) or op", "use 2, torchtitan's default, for every second layer");
  }
}

// A separate state type and stochastic rounding exist only in the fused update of float32 and bfloat16.
void check_states(Checker& check) {
  const OptimizerSection& optimizer = check.config().optimizer;
  const std::string& dtype = check.config().training.dtype;
  const auto needs_fused = [&](const char* key, const auto& value) {
    if (optimizer.implementation == "fused") return;
    check.fail(key, value,
               absl::StrCat("requires optimizer.implementation = \"fused\", not ", optimizer.implementation),
               "use fused");
  };
  if (optimizer.state_dtype != "auto") {
    if (dtype == "float64") {
      check.fail("optimizer.state_dtype", optimizer.state_dtype,
                 "requires float32 or bfloat16, but training.dtype is float64", "leave it out");
    }
    needs_fused("optimizer.state_dtype", optimizer.state_dtype);
  }
  if (!optimizer.stochastic_rounding) return;
  if (dtype != "bfloat16") {
    check.fail("optimizer.stochastic_rounding", true,
               absl::StrCat("rounds bfloat16 parameters, but training.dtype is ", dtype),
               "leave it out, or set training.dtype = \"bfloat16\"");
  }
  needs_fused("optimizer.stochastic_rounding", true);
}

// Returns why a model's logits do not depend on the size of its query and key weights; empty: they do.
std::string normed_logits(const models::ModelSpec& spec) {
  if (spec.qk_norm) return "norms every query and key head";
  return spec.rotated_qk_norm ? "norms rotated query and key heads" : "";
}

// Only a rank knows the layers of a library's model, and checks again.
void check_qk_clip(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  const double clip = config.optimizer.qk_clip;
  if (clip == 0) return;
  if (adapters_of(config)) {
    check.fail("optimizer.qk_clip", clip, "scales weights of queries and keys, which are frozen under adapters",
               "leave it out, or train without lora");
  }
  if (!spec.has_value()) return;
  if (const std::string norms = normed_logits(*spec); !norms.empty()) {
    check.fail("optimizer.qk_clip", clip,
               absl::StrCat("has no effect on ", spec->name, " ", spec->flavor, ", which ", norms,
                            ": the size of their weights does not affect the logits"),
               "leave it out");
  }
}

// Weights updated during the backward pass cannot wait for results of all ranks and microbatches.
void check_early_step(Checker& check) {
  const JobConfig& config = check.config();
  if (!config.optimizer.early_step_in_backward) return;
  const auto refuse = [&](const std::string& why, const std::string& suggestion) {
    check.fail("optimizer.early_step_in_backward", true, why, suggestion);
  };
  if (uses_optimizer(config.optimizer, "Muon")) {
    refuse("does not work with Muon, which needs a whole matrix's gradient of all ranks at once",
           "leave it out, or use AdamW");
  }
  if (config.parallelism.pipeline_parallel_degree > 1) {
    refuse("a pipeline's gradients are complete only after its last backward pass",
           "leave it out, or use parallelism.pipeline_parallel_degree = 1");
  }
  if (config.parallelism.expert_parallel_degree > 1) {
    refuse("does not work with experts on several ranks",
           "leave it out, or use parallelism.expert_parallel_degree = 1");
  }
  if (config.training.nonfinite_policy == "skip") {
    refuse(
        "updates weights before a step is known to be finite, so that training.nonfinite_policy = \"skip\" cannot "
        "skip it",
        "use training.nonfinite_policy = \"fail\"");
  }
}

// Generating text runs the whole model on each rank.
void check_samples(Checker& check) {
  const JobConfig& config = check.config();
  const std::vector<std::string>& prompts = config.validation.sample_prompts;
  if (prompts.empty()) return;
  const std::string count = absl::StrCat(prompts.size(), prompts.size() == 1 ? " prompt" : " prompts");
  if (!config.validation.enable) {
    check.fail("validation.sample_prompts", count, "has no effect without validation.enable",
               "set validation.enable = true, or leave the prompts out");
  }
  if (config.parallelism.pipeline_parallel_degree > 1 || config.parallelism.context_parallel_degree > 1) {
    check.fail("validation.sample_prompts", count,
               "needs a mesh without pipeline and context parallelism (parallelism.pipeline_parallel_degree and "
               "context_parallel_degree of 1)",
               "leave the prompts out and use titan-generate on the job's checkpoints");
  }
}

void check_data(Checker& check) {
  const auto check_path = [&](const std::string& key, const std::optional<std::string>& path) {
    if (!path.has_value() || !hub::is_hub_path(*path)) return;
    if (const auto parsed = hub::parse_dataset_path(*path); !parsed.ok())
      check.fail(key, *path, std::string(parsed.status().message()), "");
  };
  const JobConfig& config = check.config();
  check_path("training.dataset_path", config.training.dataset_path);
  check_dataset_names(check);
  const TrainingSection& training = config.training;
  check_datasets(check, "training", training.dataset, training.dataset_path, training.dataloader);
  check_sources(check, "training", training.dataloader, training.dataset_path);
  const ValidationSection& validation = config.validation;
  check_datasets(check, "validation", validation.dataset, validation.dataset_path, validation.dataloader);
  if (!validation.enable) return;
  check_path("validation.dataset_path", config.validation.dataset_path);
  check_sources(check, "validation", config.validation.dataloader, config.validation.dataset_path);
  if (config.validation.dataloader.order == "per_rank" && config.validation.steps < 0) {
    check.fail("validation.dataloader.order", "per_rank",
               "gives ranks unequal numbers of batches, but validation.steps = -1 validates on all data",
               "set validation.steps, or validation.dataloader.order = \"global\"");
  }
}

// A resource id of the API: lower-case letters, digits and inner hyphens.
bool is_id(const std::string& text) {
  const auto is_word = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  return !text.empty() && text.size() <= 63 && absl::ascii_islower(text.front()) && is_word(text.back()) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return is_word(c) || c == '-'; });
}

void check_names(Checker& check) {
  const SchedulingSection& scheduling = check.config().scheduling;
  constexpr char kRule[] = "expects lower-case letters, digits and inner hyphens, at most 63, beginning with a letter";
  if (!is_id(scheduling.project)) check.fail("scheduling.project", scheduling.project, kRule, "");
  if (!scheduling.job_id.empty() && !is_id(scheduling.job_id)) {
    check.fail("scheduling.job_id", scheduling.job_id, kRule, "");
  }
  if (check.config().job.dump_folder.empty()) check.fail("job.dump_folder", "", "must not be empty", "");
  const std::string& umask = check.config().job.umask;
  if (!umask.empty() && !host::parse_umask(umask)) {
    check.fail("job.umask", umask, "expects an octal number that leaves the owner all permissions",
               "\"022\" or \"027\"");
  }

  const auto inner = [&](const std::string& key, const std::string& folder) {
    const bool leaves = folder.empty() || folder.front() == '/' || folder == "~" || absl::StartsWith(folder, "~/") ||
                        folder == ".." || absl::StartsWith(folder, "../") || absl::StrContains(folder, "/../") ||
                        absl::EndsWith(folder, "/..");
    if (leaves) return check.fail(key, folder, "expects a path inside job.dump_folder", "");
    if (folder.front() != '$' || !text::names_variable(folder)) return;
    check.fail(key, folder, absl::StrCat("expects a path inside job.dump_folder: ", text::kNoVariables), "");
  };
  const std::string& checkpoints = check.config().checkpoint.folder;
  if (!s3::is_location(checkpoints)) inner("checkpoint.folder", checkpoints);
  inner("metrics.save_tb_folder", check.config().metrics.save_tb_folder);
  if (const auto& file = check.config().job.save_config_file) inner("job.save_config_file", *file);
  inner("profiling.save_traces_folder", check.config().profiling.save_traces_folder);
  inner("profiling.save_memory_snapshot_folder", check.config().profiling.save_memory_snapshot_folder);
  inner("comm.save_traces_folder", check.config().comm.save_traces_folder);
  inner("validation.save_img_folder", check.config().validation.save_img_folder);
  inner("inference.save_img_folder", check.config().inference.save_img_folder);
  const std::string& prefix = check.config().comm.save_traces_file_prefix;
  if (absl::StrContains(prefix, '/'))
    check.fail("comm.save_traces_file_prefix", prefix, "expects a name without /", "");
}

}  // namespace

std::vector<Problem> check(const JobConfig& config, const std::map<std::string, Origin>& origins) {
  Checker checker(config, origins);
  const std::optional<models::ModelSpec> spec = check_model(checker);
  check_balance(checker, spec);
  check_mesh(checker, spec);
  check_profiling(checker);
  check_resources(checker);
  check_pipeline(checker, spec ? models::block_names(*spec) : pipeline::ModelBlocks());
  check_checkpoint(checker);
  check_schedules(checker);
  check_param_groups(checker, spec);
  check_activation_checkpoint(checker, spec);
  check_states(checker);
  check_early_step(checker);
  if (kind_of(config.model) != ModelKind::kTextToImage) {
    check_qk_clip(checker, spec);
    check_lora(checker, spec);
    check_low_precision(checker, spec);
    check_samples(checker);
  }
  check_images(checker);
  check_data(checker);
  check_names(checker);
  std::vector<Problem> problems = check_support(config, origins);
  problems.insert(problems.end(), checker.problems().begin(), checker.problems().end());
  make_printable(problems);
  return problems;
}

absl::Status validate(const JobConfig& config) { return to_status(check(config)); }

absl::Status validate(const LoadedConfig& loaded) { return to_status(check(loaded.config, loaded.origins)); }

void resolve(JobConfig& config) {
  if (config.memory_estimation.enable) config.comm.mode = "fake_backend";  // A dry run, which counts all bytes.
  const absl::StatusOr<mesh::Mesh> mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!mesh.ok()) return;
  config.parallelism.data_parallel_shard_degree = mesh->degrees().dp_shard;
}

std::int64_t seed_of(std::string_view id) {
  std::uint32_t hash = 2166136261U;  // FNV-1a.
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return hash;
}

int processes(const JobConfig& config) { return config.comm.mode == "default" ? config.resources.ranks : 1; }

int batch_degree(const JobConfig& config) {
  return config.parallelism.data_parallel_replicate_degree * config.parallelism.data_parallel_shard_degree;
}

std::int64_t global_batch(const JobConfig& config) {
  const TrainingSection& training = config.training;
  return training.global_batch_size > 0 ? training.global_batch_size : training.local_batch_size * batch_degree(config);
}

std::int64_t accumulation_steps(const JobConfig& config) {
  return global_batch(config) / (config.training.local_batch_size * batch_degree(config));
}

std::int64_t max_logit_bytes(const JobConfig& config) {
  const std::int64_t automatic = config.resources.device == "cuda" ? 2048 : 64;
  return (config.training.max_logits_mib < 0 ? automatic : config.training.max_logits_mib) << 20;
}

}  // namespace titan::config
