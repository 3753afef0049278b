#include "common/plan/models/vision_spec.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::models {
namespace {

void add_linear(std::vector<ParameterSpec>& list, const std::string& name, int64_t out, int64_t in) {
  list.push_back({absl::StrCat(name, ".weight"), {out, in}});
  list.push_back({absl::StrCat(name, ".bias"), {out}});
}

void add_norm(std::vector<ParameterSpec>& list, const std::string& name, int64_t dim) {
  list.push_back({absl::StrCat(name, ".weight"), {dim}});
  list.push_back({absl::StrCat(name, ".bias"), {dim}});
}

void add_layer(std::vector<ParameterSpec>& list, const std::string& prefix, const VisionSpec& spec) {
  add_norm(list, prefix + "layer_norm1", spec.dim);
  for (const char* projection : {"q_proj", "k_proj", "v_proj", "out_proj"})
    add_linear(list, absl::StrCat(prefix, "self_attn.", projection), spec.dim, spec.dim);
  add_norm(list, prefix + "layer_norm2", spec.dim);
  add_linear(list, prefix + "mlp.fc1", spec.ffn_hidden, spec.dim);
  add_linear(list, prefix + "mlp.fc2", spec.dim, spec.ffn_hidden);
}

}  // namespace

std::string inconsistency(const VisionSpec& spec) {
  const std::pair<const char*, int64_t> sizes[] = {{"dim", spec.dim},
                                                   {"ffn_hidden", spec.ffn_hidden},
                                                   {"n_layers", spec.n_layers},
                                                   {"n_heads", spec.n_heads},
                                                   {"channels", spec.channels},
                                                   {"patch_size", spec.patch_size},
                                                   {"position_side", spec.position_side}};
  for (const auto& [name, value] : sizes) {
    if (value <= 0) return absl::StrCat(name, ": ", value, " is not above 0");
  }
  if (spec.dim % spec.n_heads != 0) return absl::StrCat("n_heads: ", spec.n_heads, " does not divide dim ", spec.dim);
  if (!(spec.norm_eps > 0)) return absl::StrCat("norm_eps: ", spec.norm_eps, " is not above 0");
  if (spec.out_dim < 0) return absl::StrCat("out_dim: ", spec.out_dim, " is below 0");
  return "";
}

std::vector<ParameterSpec> parameters(const VisionSpec& spec) {
  std::vector<ParameterSpec> list;
  add_linear(list, "encoder.embeddings.patch_embedding", spec.dim, spec.patch_values());
  list.push_back({"encoder.embeddings.position_embedding.weight",
                  {spec.position_side * spec.position_side, spec.dim},
                  ParameterRole::kEmbedding});
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    add_layer(list, absl::StrCat("encoder.layers.", layer, "."), spec);
  add_norm(list, "encoder.post_layernorm", spec.dim);
  if (spec.out_dim > 0) {
    add_linear(list, "projector.w1", spec.dim, spec.dim);
    add_linear(list, "projector.w2", spec.out_dim, spec.dim);
  }
  return list;
}

int64_t parameter_count(const VisionSpec& spec) {
  int64_t count = 0;
  for (const ParameterSpec& tensor : parameters(spec)) count += tensor.numel();
  return count;
}

std::string vision_block_of(const std::string& fqn) {
  constexpr char kLayers[] = "encoder.layers.";
  if (absl::StartsWith(fqn, kLayers)) return fqn.substr(0, fqn.find('.', sizeof(kLayers) - 1));
  return absl::StartsWith(fqn, "encoder.embeddings.") ? "encoder.embeddings" : "projector";
}

int64_t flops_per_patch(const VisionSpec& spec, int64_t patches) {
  int64_t flops = 12 * spec.n_layers * spec.dim * patches;
  for (const ParameterSpec& tensor : parameters(spec)) {
    if (tensor.role == ParameterRole::kEmbedding || tensor.shape.size() < 2) continue;
    flops += (vision_block_of(tensor.fqn) == "encoder.embeddings" ? 4 : 6) * tensor.numel();
  }
  return flops;
}

}  // namespace titan::models
