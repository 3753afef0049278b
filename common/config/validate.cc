#include "common/config/validate.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/checker.h"
#include "common/config/support.h"
#include "common/mesh/divisibility.h"
#include "common/mesh/mesh.h"
#include "common/models/registry.h"

namespace titan::config {
namespace {

mesh::Degrees degrees_of(const Parallelism& p) {
  return {.pp = p.pipeline_parallel_degree,
          .dp_replicate = p.data_parallel_replicate_degree,
          .dp_shard = p.data_parallel_shard_degree,
          .cp = p.context_parallel_degree,
          .tp = p.tensor_parallel_degree,
          .ep = p.expert_parallel_degree,
          .etp = p.expert_tensor_parallel_degree};
}

std::optional<models::ModelSpec> check_model(Checker& check) {
  const Model& model = check.config().model;
  const std::string& library = check.config().experimental.custom_import;
  if (!library.empty() && !absl::EndsWith(library, ".so")) {
    check.fail("experimental.custom_import", library, "expects a shared library (.so) with models",
               "Python modules cannot be loaded; docs/howto/add-a-model.md shows such a library");
  }
  absl::StatusOr<models::ModelSpec> spec = models::find(model.name, model.flavor);
  if (!spec.ok()) {
    // A library of models may bring any name; only a rank, which loads it, knows.
    if (!library.empty() && models::flavors(model.name).empty()) return std::nullopt;
    if (model.name == "flux") {
      check.fail("model.name", model.name, "not supported yet", "use llama3");
    } else {
      const bool known = !models::flavors(model.name).empty();
      check.fail_as(known ? "model.flavor" : "model.name", known ? model.flavor : model.name, spec.status());
    }
    return std::nullopt;
  }
  return *spec;
}

// Whether the product of the degrees can be computed at all; reports it otherwise.
bool check_degrees(Checker& check, const mesh::Degrees& degrees) {
  std::int64_t product = 1;
  for (const int degree : {degrees.pp, degrees.dp_replicate, std::max(degrees.dp_shard, 1), degrees.cp, degrees.tp}) {
    if (!__builtin_mul_overflow(product, std::int64_t{degree}, &product)) continue;
    check.fail("parallelism", "",
               absl::StrCat("degrees multiply to far more than the job's ", check.config().resources.ranks, " ranks"),
               "");
    return false;
  }
  return true;
}

// Held-out rows are split like the training ones.
void check_validation_mesh(Checker& check, const mesh::Mesh& mesh) {
  const JobConfig& config = check.config();
  const mesh::Sizes rows{.seq_len = config.validation.seq_len,
                         .sequence_parallel = config.parallelism.enable_sequence_parallel};
  if (absl::Status bad = mesh::check_divisible(mesh, rows); !bad.ok()) {
    const std::string message = absl::StrReplaceAll(bad.message(), {{"training.seq_len", "validation.seq_len"}});
    check.fail_as("validation.seq_len", "", absl::InvalidArgumentError(message));
  }
  const std::int64_t piece = config.parallelism.pipeline_parallel_microbatch_size;
  if (mesh.size(mesh::Axis::kPipeline) == 1 || piece < 1 || config.validation.local_batch_size % piece == 0) return;
  check.fail("validation.local_batch_size", config.validation.local_batch_size,
             absl::StrCat("is not a multiple of parallelism.pipeline_parallel_microbatch_size ", piece),
             absl::StrCat("use ", (config.validation.local_batch_size / piece + 1) * piece));
}

void check_mesh(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  if (!check_degrees(check, degrees_of(config.parallelism))) return;
  const absl::StatusOr<mesh::Mesh> mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!mesh.ok()) return check.fail_as("parallelism", "", mesh.status());
  mesh::Sizes sizes{.seq_len = config.training.seq_len,
                    .sequence_parallel = config.parallelism.enable_sequence_parallel};
  if (spec.has_value()) {
    sizes.n_layers = spec->n_layers;
    sizes.n_heads = spec->n_heads;
    sizes.n_kv_heads = spec->attention == models::Attention::kLatent ? 0 : spec->n_kv_heads;
    sizes.vocab_size = spec->vocab_size;
    for (std::int64_t layer = 0; layer < spec->n_layers; ++layer) {
      if (!spec->layer_has_experts(layer)) sizes.ffn_hidden = spec->ffn_hidden;
    }
    if (spec->moe.has_value()) {
      sizes.num_experts = spec->moe->num_experts;
      sizes.expert_hidden = spec->moe->hidden;
      sizes.shared_hidden = spec->moe->hidden * spec->moe->num_shared_experts;
    }
  }
  const bool staged = mesh->size(mesh::Axis::kPipeline) > 1;
  sizes.rows = staged ? config.parallelism.pipeline_parallel_microbatch_size : config.training.local_batch_size;
  if (absl::Status bad = mesh::check_divisible(*mesh, sizes); !bad.ok()) check.fail_as("parallelism", "", bad);
  if (config.validation.enable) check_validation_mesh(check, *mesh);

  if (mesh->size(mesh::Axis::kTensor) > 1 && config.parallelism.enable_async_tensor_parallel &&
      !config.parallelism.enable_sequence_parallel) {
    check.fail(
        "parallelism.enable_async_tensor_parallel", true,
        "needs parallelism.enable_sequence_parallel: activations that are whole on every rank are not gathered, so "
        "there is nothing to overlap",
        "leave one of the two out");
  }

  const Training& training = config.training;
  const std::int64_t round = training.local_batch_size * mesh->size(mesh::Axis::kBatch);
  if (training.global_batch_size > 0 && training.global_batch_size % round != 0) {
    const std::int64_t below = training.global_batch_size / round * round;
    check.fail("training.global_batch_size", training.global_batch_size,
               absl::StrCat("is not a multiple of training.local_batch_size ", training.local_batch_size, " x ",
                            mesh->size(mesh::Axis::kBatch), " data-parallel ranks = ", round),
               below > 0 ? absl::StrCat("use ", below, " or ", below + round) : absl::StrCat("use ", round));
  }
}

void check_resources(Checker& check) {
  const Resources& resources = check.config().resources;
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

void check_schedules(Checker& check) {
  const Optimizer& optimizer = check.config().optimizer;
  if (optimizer.beta1 == 1) check.fail("optimizer.beta1", optimizer.beta1, "must be below 1", "");
  if (optimizer.beta2 == 1) check.fail("optimizer.beta2", optimizer.beta2, "must be below 1", "");
  const auto& total = check.config().lr_scheduler.total_steps;
  if (const std::int64_t steps = check.config().training.steps; total.has_value() && *total < steps) {
    check.fail("lr_scheduler.total_steps", *total,
               absl::StrCat("is below training.steps ", steps, ": the learning rate would become negative"),
               absl::StrCat("use at least ", steps, " or leave it out"));
  }
  const Restart& restart = check.config().restart;
  if (restart.backoff_max_seconds < restart.backoff_initial_seconds) {
    check.fail("restart.backoff_max_seconds", restart.backoff_max_seconds,
               absl::StrCat("is below restart.backoff_initial_seconds ", restart.backoff_initial_seconds), "");
  }
  const ActivationCheckpoint& ac = check.config().activation_checkpoint;
  int every = 0;
  if (ac.mode == "selective" && ac.selective_ac_option != "op" &&
      (!absl::SimpleAtoi(ac.selective_ac_option, &every) || every < 0)) {
    check.fail("activation_checkpoint.selective_ac_option", ac.selective_ac_option,
               "expects a number N (every Nth layer) or op", "use 2, torchtitan's default, for every second layer");
  }
}

// Weights that are updated in the middle of the backward pass cannot wait for what all ranks and microbatches find.
void check_early_step(Checker& check) {
  const JobConfig& config = check.config();
  if (!config.optimizer.early_step_in_backward) return;
  const auto refuse = [&](const std::string& why, const std::string& suggestion) {
    check.fail("optimizer.early_step_in_backward", true, why, suggestion);
  };
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

void check_data(Checker& check) {
  const auto needs_path = [&](const std::string& section, const std::string& dataset, const auto& path) {
    if (dataset != "c4" || path.has_value()) return;
    check.fail(section + ".dataset", dataset,
               absl::StrCat("is a local copy of allenai/c4: ", section, ".dataset_path must name its folder"),
               "or use c4_test or c4_validation, which come with the installation");
  };
  const JobConfig& config = check.config();
  needs_path("training", config.training.dataset, config.training.dataset_path);
  if (!config.validation.enable) return;
  needs_path("validation", config.validation.dataset, config.validation.dataset_path);
}

// A resource id of the API: lower-case letters, digits and inner hyphens.
bool is_id(const std::string& text) {
  const auto is_word = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  return !text.empty() && text.size() <= 63 && absl::ascii_islower(text.front()) && is_word(text.back()) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return is_word(c) || c == '-'; });
}

void check_names(Checker& check) {
  const Scheduling& scheduling = check.config().scheduling;
  constexpr char kRule[] = "expects lower-case letters, digits and inner hyphens, a letter first, at most 63";
  if (!is_id(scheduling.project)) check.fail("scheduling.project", scheduling.project, kRule, "");
  if (!scheduling.job_id.empty() && !is_id(scheduling.job_id)) {
    check.fail("scheduling.job_id", scheduling.job_id, kRule, "");
  }
  if (check.config().job.dump_folder.empty()) check.fail("job.dump_folder", "", "must not be empty", "");

  const auto inner = [&](const std::string& key, const std::string& folder) {
    const bool leaves = folder.empty() || folder.front() == '/' || folder == ".." || absl::StartsWith(folder, "../") ||
                        absl::StrContains(folder, "/../") || absl::EndsWith(folder, "/..");
    if (leaves) check.fail(key, folder, "expects a path inside job.dump_folder", "");
  };
  inner("checkpoint.folder", check.config().checkpoint.folder);
  inner("metrics.save_tb_folder", check.config().metrics.save_tb_folder);
  if (const auto& file = check.config().job.save_config_file) inner("job.save_config_file", *file);
}

}  // namespace

std::vector<Problem> check(const JobConfig& config, const std::map<std::string, Origin>& origins) {
  Checker checker(config, origins);
  const std::optional<models::ModelSpec> spec = check_model(checker);
  check_mesh(checker, spec);
  check_resources(checker);
  check_pipeline(checker, spec ? spec->n_layers : 0);
  check_checkpoint(checker);
  check_schedules(checker);
  check_early_step(checker);
  check_data(checker);
  check_names(checker);
  std::vector<Problem> problems = check_support(config, origins);
  problems.insert(problems.end(), checker.problems().begin(), checker.problems().end());
  return problems;
}

absl::Status validate(const JobConfig& config) { return to_status(check(config)); }

absl::Status validate(const Loaded& loaded) { return to_status(check(loaded.config, loaded.origins)); }

void resolve(JobConfig& config) {
  const absl::StatusOr<mesh::Mesh> mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!mesh.ok()) return;
  config.parallelism.data_parallel_shard_degree = mesh->degrees().dp_shard;
  Training& training = config.training;
  if (training.global_batch_size < 0)
    training.global_batch_size = training.local_batch_size * mesh->size(mesh::Axis::kBatch);
}

int processes(const JobConfig& config) { return config.comm.mode == "default" ? config.resources.ranks : 1; }

int batch_degree(const JobConfig& config) {
  return config.parallelism.data_parallel_replicate_degree * config.parallelism.data_parallel_shard_degree;
}

std::int64_t accumulation_steps(const JobConfig& config) {
  return config.training.global_batch_size / (config.training.local_batch_size * batch_degree(config));
}

}  // namespace titan::config
