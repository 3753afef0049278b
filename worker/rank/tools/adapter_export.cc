#include "worker/rank/tools/adapter_export.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/plan/models/adapters.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // Most names here are from checkpoint.

constexpr char kModel[] = "model.", kA[] = ".lora_A.weight";

absl::StatusOr<at::Tensor> read_whole(StepReader& step, const std::string& key) {
  const TensorRecord* record = step.manifest().find(key);
  if (record == nullptr) return absl::FailedPreconditionError(absl::StrCat(step.folder(), ": has no ", key));
  at::Tensor value = at::empty(record->shape, at::TensorOptions().dtype(record->dtype));
  TITAN_RETURN_IF_ERROR(step.read(*record, whole(record->shape), value));
  return value;
}

// Returns "layers.0.attention.wq" and so on, in the manifest's order.
std::vector<std::string> adapted_layers(const Manifest& manifest) {
  std::vector<std::string> layers;
  for (const TensorRecord& tensor : manifest.tensors) {
    if (!absl::StartsWith(tensor.key, kModel) || !absl::EndsWith(tensor.key, kA)) continue;
    layers.push_back(tensor.key.substr(sizeof kModel - 1, tensor.key.size() - (sizeof kModel - 1) - (sizeof kA - 1)));
  }
  return layers;
}

struct Scaling {
  int64_t rank = 0;
  double alpha = 0;
};

// Returns the scaling with which the step's job was configured.
absl::StatusOr<Scaling> scaling_of(const StepReader& step) {
  const nlohmann::json& config = step.manifest().config;
  const auto lora = config.is_object() ? config.find("lora") : config.end();
  if (!config.is_object() || lora == config.end()) {
    return absl::FailedPreconditionError(absl::StrCat(step.folder(), ": does not record the scaling of its adapters"));
  }
  return Scaling{lora->value("rank", int64_t{0}), lora->value("alpha", 0.0)};
}

absl::StatusOr<HfLayout> layout_of(const HfMapper& mapper, const std::string& layer) {
  const bool experts = models::adapts_experts(layer);
  TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts, mapper.layouts(experts ? layer : layer + ".weight"));
  if (layout_to_write(layouts) == nullptr || layouts[0].stacked != experts || layouts[0].transposed ||
      is_shared(layouts[0]) || !layouts[0].rows.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        layer, ": Hugging Face weights have no separate matrix for this layer, so an adapter cannot name it"));
  }
  return layouts[0];
}

// Returns the last part of a module's name if all modules with that last part have an adapter, which is how users write
// target_modules; otherwise the whole name.
std::vector<std::string> target_modules(const std::vector<std::string>& adapted, const std::set<std::string>& all) {
  const auto last = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const std::set<std::string> known(adapted.begin(), adapted.end());
  std::set<std::string> partly;
  for (const std::string& module : all) {
    if (!known.contains(module)) partly.insert(last(module));
  }
  std::set<std::string> targets;
  for (const std::string& module : adapted) targets.insert(partly.contains(last(module)) ? module : last(module));
  return {targets.begin(), targets.end()};
}

// Returns Hugging Face's modules inside the layers that have a separate matrix, with or without adapters.
absl::StatusOr<std::set<std::string>> all_modules(const HfMapper& mapper, const models::ModelSpec& spec) {
  std::set<std::string> modules;
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    const bool matrix = absl::EndsWith(tensor.fqn, ".weight") || models::adapts_experts(tensor.fqn);
    if (tensor.shape.size() < 2 || !matrix) continue;
    TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts, mapper.layouts(tensor.fqn));
    for (const HfLayout& layout : layouts) {
      for (const std::string& key : layout.keys) modules.insert(models::layer_of(key));
    }
  }
  return modules;
}

nlohmann::json peft_config(const Scaling& scaling, const std::vector<std::string>& targets, const std::string& base) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.empty() ? nlohmann::json() : nlohmann::json(base)},
          {"r", scaling.rank},
          {"lora_alpha", scaling.alpha},
          {"lora_dropout", 0.0},
          {"target_modules", targets},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"init_lora_weights", true},
          {"inference_mode", true},
          {"modules_to_save", nullptr},
          {"use_rslora", false},
          {"use_dora", false}};
}

}  // namespace

absl::StatusOr<std::string> base_model_path(const std::string& step, const Manifest& manifest,
                                            const std::string& choice) {
  if (!choice.empty()) return choice;
  const auto lora = manifest.train_state.find("lora");
  std::string path = lora == manifest.train_state.end() ? "" : lora->value("base_path", "");
  if (!path.empty()) return path;
  return absl::InvalidArgumentError(
      absl::StrCat(step, ": holds adapters but does not record their model: give its weights with --base"));
}

bool holds_adapters(const Manifest& manifest) { return !adapted_layers(manifest).empty(); }

absl::StatusOr<std::vector<std::string>> write_peft(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                                    const models::ModelSpec& spec, const HfExport& options,
                                                    const std::string& base, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const Scaling scaling, scaling_of(step));
  std::vector<Staged> parts;
  std::vector<std::string> modules, warnings;
  const auto add = [&](const std::string& key, const at::Tensor& value) {
    const std::vector<int64_t> shape = value.sizes().vec();
    parts.push_back({"base_model.model." + key, shape, whole(shape).offset, value.contiguous()});
  };
  const auto read_narrow = [&](const HfLayout& layout, const std::string& key) -> absl::StatusOr<at::Tensor> {
    TITAN_ASSIGN_OR_RETURN(at::Tensor value, read_whole(step, key));
    TITAN_RETURN_IF_ERROR(narrow(key, stored_type(layout, options.dtype), options.overflow, value, warnings));
    return value;
  };
  for (const std::string& layer : adapted_layers(step.manifest())) {
    TITAN_ASSIGN_OR_RETURN(const HfLayout layout, layout_of(mapper, layer));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor a, read_narrow(layout, kModel + models::adapter_a(layer)));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor b, read_narrow(layout, kModel + models::adapter_b(layer)));
    const std::vector<at::Tensor> outputs = to_hf(layout, b);  // Its rows are the weight's rows.
    for (size_t i = 0; i < layout.keys.size(); ++i) {          // One per expert if the experts are separate modules.
      modules.push_back(models::layer_of(layout.keys[i]));
      add(models::adapter_a(modules.back()), layout.stacked ? a[static_cast<int64_t>(i)] : a);
      add(models::adapter_b(modules.back()), outputs.at(i));
    }
  }
  TITAN_ASSIGN_OR_RETURN(const std::set<std::string> all, all_modules(mapper, spec));
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_RETURN_IF_ERROR(write_tensors(files, folder, "adapter_model.safetensors", parts));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> missing, copy_assets(files, options.assets, folder));
  warnings.insert(warnings.end(), missing.begin(), missing.end());
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, "adapter_config.json"),
                                              peft_config(scaling, target_modules(modules, all), base).dump(2) + "\n"));
  return warnings;
}

absl::StatusOr<at::Tensor> adapter_delta(StepReader& step, const std::string& fqn, const std::vector<int64_t>& shape) {
  const std::string layer = models::layer_of(fqn);
  const bool matrix = absl::EndsWith(fqn, ".weight") || models::adapts_experts(fqn);
  if (!matrix || step.manifest().find(kModel + models::adapter_a(layer)) == nullptr) return at::Tensor();
  TITAN_ASSIGN_OR_RETURN(const Scaling scaling, scaling_of(step));
  TITAN_ASSIGN_OR_RETURN(const at::Tensor a, read_whole(step, kModel + models::adapter_a(layer)));
  TITAN_ASSIGN_OR_RETURN(const at::Tensor b, read_whole(step, kModel + models::adapter_b(layer)));
  const size_t dims = shape.size();
  if (static_cast<size_t>(a.dim()) != dims || b.size(-2) != shape[dims - 2] || a.size(-1) != shape[dims - 1]) {
    return absl::FailedPreconditionError(absl::StrCat(step.folder(), ": the adapter of ", layer, " is for [",
                                                      b.size(-2), ", ", a.size(-1), "], the weight is ",
                                                      shape_text(shape)));
  }
  return at::matmul(b.to(at::kFloat), a.to(at::kFloat)).mul_(scaling.alpha / static_cast<double>(scaling.rank));
}

absl::StatusOr<at::Tensor> with_adapter(StepReader& step, const std::string& fqn, const at::Tensor& weight) {
  TITAN_ASSIGN_OR_RETURN(const at::Tensor delta, adapter_delta(step, fqn, weight.sizes().vec()));
  return delta.defined() ? weight.to(at::kFloat).add(delta) : weight;
}

}  // namespace titan::tools
