#include "common/plan/models/adapters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::models {

std::string layer_of(const std::string& fqn) { return adapts_experts(fqn) ? fqn : fqn.substr(0, fqn.rfind('.')); }

bool pattern_names(const std::string& pattern, const std::string& layer) {
  const std::vector<std::string> wanted = absl::StrSplit(pattern, '.'), parts = absl::StrSplit(layer, '.');
  const auto same = [](const std::string& part, const std::string& want) { return want == "*" || want == part; };
  return !pattern.empty() && std::search(parts.begin(), parts.end(), wanted.begin(), wanted.end(), same) != parts.end();
}

bool any_pattern_names(const std::vector<std::string>& patterns, const std::string& layer) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return pattern_names(pattern, layer); });
}

bool may_be_packed(const ParameterSpec& tensor) {
  return tensor.shape.size() == 2 && absl::StartsWith(tensor.fqn, "layers.") && absl::EndsWith(tensor.fqn, ".weight") &&
         (tensor.role == ParameterRole::kDense || tensor.role == ParameterRole::kSharedExpert);
}

bool adapts_experts(const std::string& fqn) {
  const auto ends = [&](const char* name) { return absl::EndsWith(fqn, name); };
  return ends(".experts.w1") || ends(".experts.w2") || ends(".experts.w3");
}

bool takes_adapter(const ParameterSpec& tensor) {
  return may_be_packed(tensor) || (tensor.role == ParameterRole::kExpert && adapts_experts(tensor.fqn));
}

std::string adapter_a(const std::string& layer) { return layer + ".lora_A.weight"; }
std::string adapter_b(const std::string& layer) { return layer + ".lora_B.weight"; }

std::vector<ParameterSpec> adapter_tensors(const ModelSpec& spec, const AdapterSpec& adapters) {
  std::vector<ParameterSpec> all;
  for (const ParameterSpec& tensor : parameters(spec)) {
    const std::string layer = layer_of(tensor.fqn);
    if (!takes_adapter(tensor) || !any_pattern_names(adapters.targets, layer)) continue;
    // A replaces the weight's outputs by the rank, B its inputs.
    ParameterSpec a{adapter_a(layer), tensor.shape, tensor.role}, b{adapter_b(layer), tensor.shape, tensor.role};
    a.shape[a.shape.size() - 2] = b.shape[b.shape.size() - 1] = adapters.rank;
    all.push_back(std::move(a));
    all.push_back(std::move(b));
  }
  return all;
}

std::vector<ParameterSpec> trained_tensors(const ModelSpec& spec, const std::optional<AdapterSpec>& adapters) {
  return adapters ? adapter_tensors(spec, *adapters) : parameters(spec);
}

std::int64_t adapter_flops_per_token(const ModelSpec& spec, const AdapterSpec& adapters, std::int64_t seq_len) {
  std::int64_t active = 0, trained = 0;
  for (const BlockSize& block : block_sizes(spec)) active += block.active_params;
  for (const ParameterSpec& tensor : adapter_tensors(spec, adapters)) {
    const bool routed = tensor.role == ParameterRole::kExpert;  // A token uses top_k of them.
    trained += routed ? tensor.numel() / spec.moe->num_experts * spec.moe->top_k : tensor.numel();
  }
  return flops_per_token(spec, seq_len) - 2 * active + 6 * trained;
}

}  // namespace titan::models
