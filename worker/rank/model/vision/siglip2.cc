#include "worker/rank/model/vision/siglip2.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/plan/models/vision.h"
#include "worker/rank/model/vision/positions.h"

namespace titan::model {
namespace {

using nn::Init;

// Initial values are torchtitan's. It leaves the encoder's biases unset; here they are zero.
constexpr Init kZero{Init::Kind::kZeros};
constexpr Init kMatrix{Init::Kind::kTruncatedNormal, 0.02, -2.0, 2.0};
constexpr Init kPositions{Init::Kind::kNormal, 1.0};

// Glorot's uniform distribution (Glorot and Bengio, 2010).
Init xavier(int64_t in, int64_t out) {
  const double bound = std::sqrt(6.0 / static_cast<double>(in + out));
  return {Init::Kind::kUniform, 0, -bound, bound};
}

nn::Linear linear(const nn::Declare& declare, const std::string& fqn, int64_t in, int64_t out, Init init = kMatrix) {
  return {declare, fqn + ".weight", in, out, init, &kZero};
}

constexpr char kEmbeddings[] = "encoder.embeddings";

}  // namespace

PatchEmbedding::PatchEmbedding(const models::VisionSpec& spec, ImagesOf images_of)
    : Block(kEmbeddings),
      patch_embedding(linear(declare(), absl::StrCat(kEmbeddings, ".patch_embedding"), spec.patch_values(), spec.dim)),
      position_embedding(declare()(absl::StrCat(kEmbeddings, ".position_embedding.weight"),
                                   {spec.position_side * spec.position_side, spec.dim}, kPositions)),
      images_of_(std::move(images_of)) {}

at::Tensor PatchEmbedding::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const Images& images = images_of_(context);
  TORCH_CHECK(input.dim() == 3 && input.size(0) == 1 && input.size(1) == images.patches(), name(),
              ": got patches of the shape ", input.sizes(), ", need [1, ", images.patches(), ", ",
              patch_embedding.weight().global_shape[1], "]");
  const at::Tensor& table = position_embedding.weight;
  return patch_embedding.forward(input.to(table.scalar_type())) + resize_positions(table, images.grids);
}

PatchAttention::PatchAttention(const nn::Declare& declare, const std::string& fqn, const models::VisionSpec& spec)
    : q_proj(linear(declare, fqn + ".q_proj", spec.dim, spec.dim)),
      k_proj(linear(declare, fqn + ".k_proj", spec.dim, spec.dim)),
      v_proj(linear(declare, fqn + ".v_proj", spec.dim, spec.dim)),
      out_proj(linear(declare, fqn + ".out_proj", spec.dim, spec.dim)),
      head_dim_(spec.head_dim()) {}

at::Tensor PatchAttention::forward(const at::Tensor& input, const nn::MicrobatchContext& context) const {
  const auto heads = [&](const at::Tensor& x) { return x.unflatten(2, {-1, head_dim_}).transpose(1, 2); };
  const std::vector<at::Tensor> qkv = nn::project_each(input, {&q_proj, &k_proj, &v_proj});
  const at::Tensor mixed = core({.q = heads(qkv[0]),
                                 .k = heads(qkv[1]),
                                 .v = heads(qkv[2]),
                                 .scale = 1.0 / std::sqrt(static_cast<double>(head_dim_)),
                                 .mask = {.documents = true, .causal = false}},
                                context);  // [1, H, P, head_dim]
  return out_proj.forward(mixed.transpose(1, 2).flatten(2));
}

VisionLayer::VisionLayer(const models::VisionSpec& spec, int64_t index, ImagesOf images_of)
    : Block(absl::StrCat("encoder.layers.", index)),
      layer_norm1(declare(), name() + ".layer_norm1", spec.dim, spec.norm_eps),
      self_attn(declare(), name() + ".self_attn", spec),
      layer_norm2(declare(), name() + ".layer_norm2", spec.dim, spec.norm_eps),
      fc1(linear(declare(), name() + ".mlp.fc1", spec.dim, spec.ffn_hidden)),
      fc2(linear(declare(), name() + ".mlp.fc2", spec.ffn_hidden, spec.dim)),
      images_of_(std::move(images_of)) {}

at::Tensor VisionLayer::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const at::Tensor attended = input + self_attn.forward(layer_norm1.forward(input), images_of_(context).context);
  return attended + fc2.forward(at::gelu(fc1.forward(layer_norm2.forward(attended)), "tanh"));
}

Projector::Projector(const models::VisionSpec& spec)
    : Block("projector"),
      post_layernorm(declare(), "encoder.post_layernorm", spec.dim, spec.norm_eps),
      w1(linear(declare(), "projector.w1", spec.dim, spec.dim, xavier(spec.dim, spec.dim))),
      w2(linear(declare(), "projector.w2", spec.dim, spec.out_dim, xavier(spec.dim, spec.out_dim))) {}

at::Tensor Projector::forward(const at::Tensor& input, const nn::MicrobatchContext&) {
  return w2.forward(at::silu(w1.forward(post_layernorm.forward(input))));
}

absl::StatusOr<std::vector<std::unique_ptr<nn::Block>>> build_vision_tower(const models::VisionSpec& spec,
                                                                           const ImagesOf& images_of) {
  std::string bad = models::inconsistency(spec);
  if (bad.empty() && spec.out_dim == 0) bad = "out_dim: 0, but the projector needs the width of the language model";
  if (!bad.empty()) return absl::InvalidArgumentError(absl::StrCat("vision tower: ", bad));
  std::vector<std::unique_ptr<nn::Block>> blocks;
  blocks.push_back(std::make_unique<PatchEmbedding>(spec, images_of));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    blocks.push_back(std::make_unique<VisionLayer>(spec, layer, images_of));
  blocks.push_back(std::make_unique<Projector>(spec));
  return blocks;
}

}  // namespace titan::model
