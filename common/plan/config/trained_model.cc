#include "common/plan/config/trained_model.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/nearest.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/models/registry.h"

namespace titan::config {

absl::StatusOr<models::ModelSpec> resolve_model(const ModelSection& model) {
  absl::StatusOr<models::ModelSpec> spec =
      model.flavor == kConfigFlavor ? spec_of_config_flavor(model) : models::find(model.name, model.flavor);
  if (!spec.ok()) return spec;
  return apply_model_overrides(*std::move(spec), model);
}

std::vector<std::string> length_warnings(const JobConfig& config, const models::ModelSpec& spec) {
  std::vector<std::string> warnings;
  if (kind_of(config.model) == ModelKind::kTextToImage) return warnings;
  const auto look = [&](const char* key, std::int64_t seq_len) {
    if (seq_len <= spec.max_seq_len || spec.max_seq_len == 0) return;
    warnings.push_back(absl::StrCat(key, " = ", seq_len, " is beyond the ", spec.max_seq_len, " tokens that ",
                                    spec.name, " ", spec.flavor,
                                    " is made for (max_seq_len): its RoPE is extrapolated"));
  };
  look("training.seq_len", config.training.seq_len);
  if (config.validation.enable) look("validation.seq_len", config.validation.seq_len);
  return warnings;
}

namespace {

bool any_is_set(const std::vector<Field>& fields) {
  const auto is_set = [](auto* member) {
    if constexpr (requires { member->has_value(); }) return member->has_value();
    return false;
  };
  return std::any_of(fields.begin(), fields.end(), [&](const Field& field) { return std::visit(is_set, field.ref); });
}

// Whether the section sets a number of a scaling that the model has.
bool overrides_scaling(const ModelSection& model) {
  ModelOverrideSection copy = model.overrides;  // Fields refer to members that they may change.
  return any_is_set(fields_of(copy.rope_scaling)) || any_is_set(fields_of(copy.yarn));
}

}  // namespace

bool overrides_positions(const ModelSection& model) {
  const ModelOverrideSection& all = model.overrides;
  return all.rope_theta || all.window_rope_theta || all.rope_type || overrides_scaling(model);
}

absl::StatusOr<models::ModelSpec> settle_model(const models::ModelSpec& base, const models::ModelSpec& with_weights,
                                               const ModelSection& model) {
  models::ModelSpec spec = with_weights;
  if (model.overrides.rope_type || overrides_scaling(model)) {  // The numbers belong to the scaling of the flavor.
    spec.rope_scaling = base.rope_scaling;
    spec.yarn = base.yarn;
  }
  return apply_model_overrides(std::move(spec), model);
}

absl::StatusOr<models::ModelSpec> apply_model_overrides(models::ModelSpec spec, const ModelSection& model) {
  TITAN_RETURN_IF_ERROR(apply_override(model.overrides, spec));
  if (model.load_balance_coeff && spec.moe) spec.moe->load_balance_coeff = *model.load_balance_coeff;
  if (!model.attn_mask_type) return spec;
  spec.mask = *model.attn_mask_type == "block_causal" ? models::Mask::kBlockCausal : models::Mask::kCausal;
  return spec;
}

namespace {

bool has(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Returns "attention.wq" for "layers.3.attention.wq".
std::string inner_name(const std::string& layer) { return layer.substr(layer.find('.', sizeof("layers.")) + 1); }

// Suggests what a pattern without a match may mean: a component, a module inside a layer, or a whole name.
std::string near_target(const std::string& pattern, const std::vector<std::string>& layers) {
  std::vector<std::string> known;
  const auto add = [&](std::string name) {
    if (!has(known, name)) known.push_back(std::move(name));
  };
  for (const std::string& layer : layers) {
    const std::string inner = inner_name(layer);
    add(absl::StartsWith(pattern, "layers.") ? layer : inner);
    if (absl::StrContains(pattern, ".")) continue;
    add(inner.substr(0, inner.find('.')));
    add(inner.substr(inner.rfind('.') + 1));
  }
  const std::string near = nearest(pattern, known);
  if (!near.empty()) return absl::StrCat("did you mean \"", near, "\"?");
  known.resize(std::min<std::size_t>(known.size(), 8));
  return absl::StrCat("there are ", absl::StrJoin(known, ", "));
}

// Default patterns without a match are not an error: a dense model has no shared experts.
void check_targets(Checker& check, const models::ModelSpec& spec) {
  const std::vector<std::string>& targets = check.config().lora.targets;
  const std::vector<std::string> standard = LoraSection().targets;
  std::vector<std::string> layers, others;  // Layers that may and may not have adapters.
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    if (models::takes_adapter(tensor)) {
      layers.push_back(models::layer_of(tensor.fqn));
    } else if (tensor.shape.size() > 1) {  // Names of experts' tensors do not end in .weight.
      const bool weight = absl::EndsWith(tensor.fqn, ".weight");
      others.push_back(weight ? models::layer_of(tensor.fqn) : tensor.fqn);
    }
  }
  for (const std::string& pattern : targets) {
    const auto named = [&](const std::string& name) { return models::pattern_names(pattern, name); };
    if (const auto other = std::find_if(others.begin(), others.end(), named); other != others.end()) {
      check.fail("lora.targets", pattern,
                 absl::StrCat("names ", *other,
                              ": adapters are for linear layers only, not "
                              "for fused experts, routers, embeddings and heads"),
                 absl::StrCat("name layers such as ", inner_name(layers.front())));
    } else if (std::none_of(layers.begin(), layers.end(), named) && !has(standard, pattern)) {
      check.fail("lora.targets", pattern, absl::StrCat("names no linear layer of ", spec.name, " ", spec.flavor),
                 near_target(pattern, layers));
    }
  }
  const bool any = std::any_of(layers.begin(), layers.end(),
                               [&](const std::string& layer) { return models::any_pattern_names(targets, layer); });
  if (!any) {
    check.fail("lora.targets", absl::StrCat("[", absl::StrJoin(targets, ", "), "]"),
               absl::StrCat("leave ", spec.name, " ", spec.flavor, " nothing to train"),
               absl::StrCat("name layers such as ", inner_name(layers.front())));
  }
}

// A block of 4-bit numbers must be within one rank's part of a row.
void check_nf4(Checker& check, const models::ModelSpec& spec) {
  const JobConfig& config = check.config();
  const std::int64_t ranks = config.parallelism.tensor_parallel_degree;
  if (ranks > 1 && config.parallelism.enable_async_tensor_parallel) {
    check.fail("parallelism.enable_async_tensor_parallel", true,
               "does not work with lora.base = \"nf4\": overlapped products read whole weights",
               "leave it out, or use lora.base = \"compute\"");
  }
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    if (!models::may_be_packed(tensor)) continue;
    const bool rows = absl::EndsWith(tensor.fqn, "wo.weight") || absl::EndsWith(tensor.fqn, ".w2.weight");
    const std::int64_t columns = rows ? tensor.shape[1] / ranks : tensor.shape[1];
    if (columns % models::kNf4Block == 0) continue;
    check.fail(
        "lora.base", config.lora.base,
        absl::StrCat("has blocks of ", models::kNf4Block, " weights, which do not divide the ", columns,
                     " inputs that ", models::layer_of(tensor.fqn), " has", rows && ranks > 1 ? " on a rank" : ""),
        rows && ranks > 1 ? "lower parallelism.tensor_parallel_degree, or use lora.base = \"compute\""
                          : "use lora.base = \"compute\"");
    return;
  }
}

void check_saving(Checker& check) {
  const CheckpointSection& checkpoint = check.config().checkpoint;
  if (checkpoint.create_seed_checkpoint) {
    check.fail("checkpoint.create_seed_checkpoint", true, "does not work with lora: its checkpoints have only adapters",
               "make it without model.converters, and name it in checkpoint.initial_load_path");
  }
  if (checkpoint.enable && checkpoint.last_save_in_hf) {
    check.fail("checkpoint.last_save_in_hf", true, "does not work with lora: its checkpoints have only adapters",
               "leave it out, and export the last step: titan-checkpoint export --format peft, or --merge");
  }
  if (checkpoint.initial_load_path && !checkpoint.initial_load_model_only) {
    check.fail("checkpoint.initial_load_model_only", false,
               "does not work with lora: checkpoint.initial_load_path is the frozen model", "leave it out");
  }
  if (has(checkpoint.exclude_from_loading, "model")) {
    check.fail("checkpoint.exclude_from_loading", "model",
               "does not work with lora: optimizer states without the adapters that they belong to", "leave it out");
  }
}

}  // namespace

std::optional<models::AdapterSpec> adapters_of(const JobConfig& config) {
  if (!has(config.model.converters, "lora")) return std::nullopt;
  models::AdapterSpec adapters{.rank = config.lora.rank, .alpha = config.lora.alpha, .targets = config.lora.targets};
  if (config.lora.base == "float32") adapters.base = models::BaseForm::kFloat32;
  if (config.lora.base == "bfloat16") adapters.base = models::BaseForm::kBfloat16;
  if (config.lora.base == "nf4") adapters.base = models::BaseForm::kNf4;
  return adapters;
}

std::string frozen_dtype(const JobConfig& config) {
  if (config.training.dtype == "float64" || config.lora.base == "compute" || config.lora.base == "nf4") return "";
  return config.lora.base == "float32" ? "float32" : "bfloat16";
}

void check_lora(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  if (!has(config.model.converters, "lora")) return;
  if (config.model.converters.size() > 1) {
    check.fail("model.converters", absl::StrJoin(config.model.converters, ", "),
               "lora does not work with another conversion", "leave the others out");
  }
  if (config.lora.dropout != 0) {
    check.fail("lora.dropout", config.lora.dropout, "dropout: not supported yet", "set lora.dropout = 0");
  }
  check_saving(check);
  if (config.model.overrides.vocab_size) {
    check.fail("model.override.vocab_size", *config.model.overrides.vocab_size,
               "does not work with lora: rows of added tokens would be frozen random numbers",
               "leave it out, or train without lora");
  }
  if (!spec.has_value()) return;  // Only a rank knows the layers of a library's model.
  check_targets(check, *spec);
  if (config.lora.base == "nf4") check_nf4(check, *spec);
}

}  // namespace titan::config
