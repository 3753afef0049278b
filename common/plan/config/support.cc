#include "common/plan/config/support.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/plan/config/json.h"
#include "common/plan/config/low_precision.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/mesh/mesh.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

// Returns the value as the tables and messages write it: JSON, strings without quotes.
std::string text_of(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

const nlohmann::json& at(const nlohmann::json& root, std::string_view key) {
  std::string pointer = "/" + std::string(key);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return root.at(nlohmann::json::json_pointer(pointer));
}

const nlohmann::json& default_values() {
  static const auto& values = *new nlohmann::json(to_json(JobConfig()));
  return values;
}

// Returns why a key that configures a feature has no effect; empty when it has one. One switch that is on is enough:
// then the feature exists, or check_support() rejects the switch itself.
std::string idle_detail(const std::string& key, const nlohmann::json& values, const nlohmann::json& defaults) {
  std::string why;
  for (const DependentKey& detail : dependent_keys()) {
    const bool matches = detail.key == key || (detail.key.back() == '.' && key.rfind(detail.key, 0) == 0);
    if (!matches || key == detail.switch_key) continue;
    const nlohmann::json& value = at(values, detail.switch_key);
    const bool off = detail.off.empty() ? value == at(defaults, detail.switch_key) : text_of(value) == detail.off;
    if (!off || (!detail.except.empty() && text_of(at(values, key)) == detail.except)) return "";
    if (why.empty()) why = absl::StrCat(key, " has no effect while ");
    absl::StrAppend(&why, why.back() == ' ' ? "" : " and ", std::string(detail.switch_key), " is ", text_of(value));
  }
  return why;
}

// Returns why a key of a converter that is off has no effect while another converter is on; else empty.
std::string idle_converter(const std::string& key, const JobConfig& config) {
  constexpr std::string_view kSection = "quantize.";
  if (key.rfind(kSection, 0) != 0 || config.model.converters.empty()) return "";
  const std::string converter = key.substr(0, key.rfind('.'));
  if (converts(config, converter)) return "";
  return absl::StrCat(key, " has no effect while model.converters lacks ", converter);
}

// A list of layers overrides the number.
std::string idle_number(const std::string& key, const JobConfig& config) {
  const ActivationCheckpointSection& ac = config.activation_checkpoint;
  if (key != "activation_checkpoint.selective_ac_option" || ac.layers.empty() || ac.selective_ac_option == "op")
    return "";
  return absl::StrCat(key, " = ", ac.selective_ac_option,
                      " has no effect while activation_checkpoint.layers names the layers");
}

// If every rank has whole weights, FSDP gathers none.
std::string idle_gather(const std::string& key, const JobConfig& config) {
  if (key != "quantize.linear.float8.enable_fsdp_float8_all_gather") return "";
  const absl::StatusOr<mesh::Mesh> mesh = mesh::Mesh::create(degrees_of(config.parallelism), config.resources.ranks);
  if (!mesh.ok() || mesh->size(mesh::Axis::kFsdp) > 1) return "";
  return absl::StrCat(key, " has no effect: no two ranks share a weight to gather");
}

std::string harmless_absence(const std::string& key, const nlohmann::json& values) {
  for (const IgnoredFeature& row : ignored_features()) {
    const std::string value = text_of(at(values, key));
    if (row.key == key && (row.only.empty() || row.only == value))
      return absl::StrCat(key, " = ", value, " has no effect: ", std::string(row.instead));
  }
  return "";
}

Origin origin_of(const std::map<std::string, Origin>& origins, std::string_view key) {
  const auto found = origins.find(std::string(key));
  return found == origins.end() ? Origin{} : found->second;
}

}  // namespace

const std::vector<Unsupported>& unsupported() {
  static const auto& table = *new std::vector<Unsupported>{
      {"job.custom_config_module", "custom configuration modules",
       "they are Python, which Titan does not run; a custom model is a library (experimental.custom_import)"},
      {"fault_tolerance.enable", "fault-tolerant replicas"},
      {"experimental.custom_args_module", "custom arguments",
       "they are Python, which Titan does not run; a custom model is a library (experimental.custom_import)"},
  };
  return table;
}

const std::vector<IgnoredFeature>& ignored_features() {
  static const auto& table = *new std::vector<IgnoredFeature>{
      {"parallelism.expert_parallel_comm_backend",
       "DeepEP's kernels are not supported yet; tokens use the standard exchange", "deepep"},
      {"memory_estimation.disable_fake_mode", "memory is always estimated with tensors that allocate none"},
  };
  return table;
}

const std::vector<DependentKey>& dependent_keys() {
  static const auto& table = *new std::vector<DependentKey>{
      {"profiling.save_traces_folder", "profiling.enable_profiling"},
      {"profiling.profile_freq", "profiling.enable_profiling"},
      {"profiling.profile_freq", "profiling.enable_memory_snapshot"},
      {"profiling.profiler_active", "profiling.enable_profiling"},
      {"profiling.profiler_warmup", "profiling.enable_profiling"},
      {"profiling.save_memory_snapshot_folder", "profiling.enable_memory_snapshot"},
      {"parallelism.enable_sequence_parallel", "parallelism.tensor_parallel_degree"},
      {"parallelism.disable_loss_parallel", "parallelism.tensor_parallel_degree"},
      {"parallelism.enable_async_tensor_parallel", "parallelism.tensor_parallel_degree"},
      {"parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_last_stage_less_layers", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_microbatch_size", "parallelism.pipeline_parallel_degree"},
      {"parallelism.pipeline_parallel_expert_parallel_overlap", "parallelism.pipeline_parallel_degree"},
      {"parallelism.context_parallel_load_balancer", "parallelism.context_parallel_degree"},
      {"parallelism.context_parallel_rotate_method", "parallelism.context_parallel_degree"},
      {"parallelism.expert_parallel_comm_backend", "parallelism.expert_parallel_degree"},
      {"parallelism.expert_parallel_dispatcher", "parallelism.expert_parallel_degree"},
      {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
       "activation_checkpoint.selective_ac_option"},
      {"activation_checkpoint.memory_budget", "activation_checkpoint.mode"},
      {"activation_checkpoint.visualize_memory_budget_pareto", "activation_checkpoint.mode"},
      {"optimizer.momentum", "optimizer.name"},
      {"optimizer.momentum", "optimizer.param_groups"},
      {"optimizer.nesterov", "optimizer.name"},
      {"optimizer.nesterov", "optimizer.param_groups"},
      {"optimizer.ns_steps", "optimizer.name"},
      {"optimizer.ns_steps", "optimizer.param_groups"},
      {"optimizer.adjust_lr", "optimizer.name"},
      {"optimizer.adjust_lr", "optimizer.param_groups"},
      {"model.print_after_conversion", "model.converters"},
      {"checkpoint.export_dtype", "checkpoint.last_save_model_only", "false"},
      {"compile.enable", "resources.kernels", "reference"},
      {"compile.components", "compile.enable"},
      {"compile.graphs", "compile.enable"},
      {"comm.save_traces_folder", "comm.trace_buf_size", "0"},
      {"comm.save_traces_file_prefix", "comm.trace_buf_size", "0"},
      {"resources.kernels", "resources.device", "cuda", "reference"},
      {"quantize.", "model.converters"},
      {"lora.", "model.converters"},
      {"checkpoint.enable_ft_dataloader_checkpoints", "fault_tolerance.enable"},
      {"debug.deterministic_warn_only", "debug.deterministic"},
      {"fault_tolerance.", "fault_tolerance.enable"},
      {"validation.classifier_free_guidance_scale", "validation.enable_classifier_free_guidance"},
      {"validation.save_img_folder", "validation.save_img_count", "0"},
  };
  return table;
}

std::vector<Problem> check_support(const JobConfig& config, const std::map<std::string, Origin>& origins) {
  const nlohmann::json values = to_json(config);
  const nlohmann::json& defaults = default_values();
  std::vector<Problem> problems;
  for (const Unsupported& row : unsupported()) {
    const nlohmann::json& value = at(values, row.key);
    const nlohmann::json& standard = at(defaults, row.key);
    if (value == standard) continue;
    problems.push_back({origin_of(origins, row.key), std::string(row.key), text_of(value),
                        absl::StrCat(std::string(row.feature), ": ",
                                     row.instead.empty() ? "not supported yet" : std::string(row.instead)),
                        absl::StrCat("set ", std::string(row.key), " = ", standard.dump())});
  }
  return problems;
}

std::vector<std::string> support_warnings(const JobConfig& config, const std::map<std::string, Origin>& origins) {
  const nlohmann::json values = to_json(config);
  const nlohmann::json& defaults = default_values();
  std::vector<std::string> warnings;
  for (const auto& [key, origin] : origins) {
    if (at(values, key) == at(defaults, key)) continue;
    std::string why = idle_with_model(key, config.model);
    if (why.empty()) why = idle_detail(key, values, defaults);
    if (why.empty()) why = idle_converter(key, config);
    if (why.empty()) why = idle_gather(key, config);
    if (why.empty()) why = idle_number(key, config);
    if (why.empty()) why = harmless_absence(key, values);
    if (why.empty()) continue;
    warnings.push_back(absl::StrCat(origin.file, origin.line > 0 ? absl::StrCat(":", origin.line) : "", ": ", why));
  }
  return warnings;
}

}  // namespace titan::config
