#include "common/plan/models/qwen3_vl.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/models/number_checks.h"
#include "common/plan/models/parameter_list.h"

namespace titan::models {
namespace {

constexpr char kPatchEmbedding[] = "visual.patch_embed", kLayers[] = "visual.blocks.", kMerger[] = "visual.merger";
constexpr char kDeepstackMergers[] = "visual.deepstack_merger_list.";

void add_merger(ParameterList& list, const std::string& name, const Qwen3VlVisionSpec& spec, bool norm_after) {
  const int64_t square = spec.dim * spec.merge * spec.merge;
  list.norm(name + ".norm", norm_after ? square : spec.dim, /*bias=*/true);
  list.linear(name + ".linear_fc1", square, square, /*bias=*/true);
  list.linear(name + ".linear_fc2", spec.out_dim, square, /*bias=*/true);
}

void add_layer(ParameterList& list, const std::string& prefix, const Qwen3VlVisionSpec& spec) {
  list.norm(prefix + "norm1", spec.dim, /*bias=*/true);
  list.linear(prefix + "attn.qkv", 3 * spec.dim, spec.dim, /*bias=*/true);
  list.linear(prefix + "attn.proj", spec.dim, spec.dim, /*bias=*/true);
  list.norm(prefix + "norm2", spec.dim, /*bias=*/true);
  list.linear(prefix + "mlp.linear_fc1", spec.ffn_hidden, spec.dim, /*bias=*/true);
  list.linear(prefix + "mlp.linear_fc2", spec.dim, spec.ffn_hidden, /*bias=*/true);
}

}  // namespace

std::string inconsistency(const ModelSpec& text, const Qwen3VlSpec& spec) {
  if (std::string wrong = inconsistency(spec.vision); !wrong.empty()) return absl::StrCat("vision tower: ", wrong);
  if (spec.vision.out_dim != text.dim)
    return absl::StrCat("out_dim: ", spec.vision.out_dim, " is not the text's dim ", text.dim);
  if (spec.deepstack_layers() > text.n_layers) {
    return absl::StrCat("deepstack_layers: ", spec.deepstack_layers(), " of them for n_layers ", text.n_layers,
                        " of the text");
  }
  if (text.attention != Attention::kGrouped || text.rope != RopeStyle::kRotateHalf || text.nope_layer_step != 0)
    return "text: positions on several axes need grouped attention that rotates halves in every layer";
  if (text.rotary_dim != 0) return "rotary_dim: positions on several axes rotate whole heads";
  if (text.window_rope_theta != 0) return "window_rope_theta: positions on several axes have one theta";
  return not_above_zero({{"mrope_section[0]", spec.mrope_section[0]},
                         {"mrope_section[1]", spec.mrope_section[1]},
                         {"mrope_section[2]", spec.mrope_section[2]}});
}

std::vector<int64_t> mrope_axes(const ModelSpec& text, const Qwen3VlSpec& spec) {
  std::vector<int64_t> axes;
  for (int64_t pair = 0; pair < text.head_dim / 2; ++pair) {
    const int64_t axis = pair % 3;
    axes.push_back(axis > 0 && pair < 3 * spec.mrope_section[static_cast<size_t>(axis)] ? axis : 0);
  }
  return axes;
}

std::vector<ParameterSpec> parameters(const Qwen3VlVisionSpec& spec) {
  ParameterList list;
  list.linear(absl::StrCat(kPatchEmbedding, ".proj"), spec.dim, spec.patch_values(), /*bias=*/true);
  list.add("visual.pos_embed.weight", {spec.position_side * spec.position_side, spec.dim}, ParameterRole::kEmbedding);
  int64_t merger = 0;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    add_layer(list, absl::StrCat(kLayers, layer, "."), spec);
    if (std::count(spec.deepstack_layers.begin(), spec.deepstack_layers.end(), layer) > 0)
      add_merger(list, absl::StrCat(kDeepstackMergers, merger++), spec, /*norm_after=*/true);
  }
  add_merger(list, kMerger, spec, /*norm_after=*/false);
  return list.take();
}

std::vector<std::string> vision_block_names(const Qwen3VlVisionSpec& spec) {
  std::vector<std::string> names{kPatchEmbedding};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) names.push_back(absl::StrCat(kLayers, layer));
  names.push_back(kMerger);
  return names;
}

std::string vision_block_of(const Qwen3VlVisionSpec& spec, const std::string& fqn) {
  if (absl::StartsWith(fqn, kLayers)) return fqn.substr(0, fqn.find('.', sizeof(kLayers) - 1));
  for (size_t merger = 0; merger < spec.deepstack_layers.size(); ++merger) {
    if (absl::StartsWith(fqn, absl::StrCat(kDeepstackMergers, merger, ".")))
      return absl::StrCat(kLayers, spec.deepstack_layers[merger]);
  }
  return absl::StartsWith(fqn, absl::StrCat(kMerger, ".")) ? kMerger : kPatchEmbedding;
}

int64_t flops_per_patch(const Qwen3VlVisionSpec& spec, int64_t patches) {
  int64_t flops = 12 * spec.n_layers * spec.dim * patches;
  for (const ParameterSpec& tensor : parameters(spec)) {
    if (tensor.role == ParameterRole::kEmbedding || tensor.shape.size() < 2) continue;
    const bool merges = absl::StartsWith(tensor.fqn, kMerger) || absl::StartsWith(tensor.fqn, kDeepstackMergers);
    const int64_t uses = absl::StartsWith(tensor.fqn, kPatchEmbedding) ? 4 : 6;
    flops += uses * tensor.numel() / (merges ? spec.merge * spec.merge : 1);
  }
  return flops;
}

}  // namespace titan::models
