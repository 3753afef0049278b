#include "common/plan/models/vision.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/models/number_checks.h"
#include "common/plan/models/parameter_list.h"

namespace titan::models {
namespace {

void add_layer(ParameterList& list, const std::string& prefix, const VisionSpec& spec) {
  list.norm(prefix + "layer_norm1", spec.dim, /*bias=*/true);
  for (const char* projection : {"q_proj", "k_proj", "v_proj", "out_proj"})
    list.linear(absl::StrCat(prefix, "self_attn.", projection), spec.dim, spec.dim, /*bias=*/true);
  list.norm(prefix + "layer_norm2", spec.dim, /*bias=*/true);
  list.linear(prefix + "mlp.fc1", spec.ffn_hidden, spec.dim, /*bias=*/true);
  list.linear(prefix + "mlp.fc2", spec.dim, spec.ffn_hidden, /*bias=*/true);
}

}  // namespace

std::string inconsistency(const VisionSpec& spec) {
  const std::string wrong = not_above_zero({{"dim", spec.dim},
                                            {"ffn_hidden", spec.ffn_hidden},
                                            {"n_layers", spec.n_layers},
                                            {"n_heads", spec.n_heads},
                                            {"channels", spec.channels},
                                            {"patch_size", spec.patch_size},
                                            {"position_side", spec.position_side}});
  if (!wrong.empty()) return wrong;
  if (spec.dim % spec.n_heads != 0) return absl::StrCat("n_heads: ", spec.n_heads, " does not divide dim ", spec.dim);
  if (!(spec.norm_eps > 0)) return absl::StrCat("norm_eps: ", spec.norm_eps, " is not above 0");
  if (spec.out_dim < 0) return absl::StrCat("out_dim: ", spec.out_dim, " is below 0");
  return "";
}

std::vector<ParameterSpec> parameters(const VisionSpec& spec) {
  ParameterList list;
  list.linear("encoder.embeddings.patch_embedding", spec.dim, spec.patch_values(), /*bias=*/true);
  list.add("encoder.embeddings.position_embedding.weight", {spec.position_side * spec.position_side, spec.dim},
           ParameterRole::kEmbedding);
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    add_layer(list, absl::StrCat("encoder.layers.", layer, "."), spec);
  list.norm("encoder.post_layernorm", spec.dim, /*bias=*/true);
  if (spec.out_dim > 0) {
    list.linear("projector.w1", spec.dim, spec.dim, /*bias=*/true);
    list.linear("projector.w2", spec.out_dim, spec.dim, /*bias=*/true);
  }
  return list.take();
}

int64_t parameter_count(const VisionSpec& spec) {
  int64_t count = 0;
  for (const ParameterSpec& tensor : parameters(spec)) count += tensor.numel();
  return count;
}

bool is_vision_parameter(const std::string& fqn) {
  return absl::StartsWith(fqn, "encoder.") || absl::StartsWith(fqn, "projector.") || absl::StartsWith(fqn, "visual.");
}

std::vector<std::string> vision_block_names(const VisionSpec& spec) {
  std::vector<std::string> names{"encoder.embeddings"};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) names.push_back(absl::StrCat("encoder.layers.", layer));
  names.push_back("projector");
  return names;
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
