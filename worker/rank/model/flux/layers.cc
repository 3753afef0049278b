#include "worker/rank/model/flux/layers.h"

#include <cmath>

#include "worker/rank/nn/rope.h"

namespace titan::model::flux {
namespace {

constexpr double kNormEps = 1e-6;
constexpr double kVectorStd = 0.02;
constexpr nn::Init kZeros{nn::Init::Kind::kZeros};

nn::Linear linear(const nn::Declare& declare, const std::string& name, int64_t in, int64_t out, const nn::Init& init) {
  return {declare, name + ".weight", in, out, init, &kZeros};
}

// x [B, T, H, D], rotation complex [B or 1, T, D / 2]. Rows with different positions are rotated as one long row.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& rotation) {
  TORCH_CHECK(rotation.size(1) == x.size(1) && (rotation.size(0) == 1 || rotation.size(0) == x.size(0)),
              "flux: a rotation of ", rotation.sizes(), " does not fit heads of ", x.sizes());
  if (rotation.size(0) == 1) return nn::apply_rope(x, rotation[0]);
  const at::Tensor row = x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)});
  return nn::apply_rope(row, rotation.flatten(0, 1)).view(x.sizes());
}

}  // namespace

nn::Linear xavier_linear(const nn::Declare& declare, const std::string& name, int64_t in, int64_t out) {
  const double bound = std::sqrt(6.0 / static_cast<double>(in + out));
  return linear(declare, name, in, out, {.kind = nn::Init::Kind::kUniform, .lower = -bound, .upper = bound});
}

nn::Linear zero_linear(const nn::Declare& declare, const std::string& name, int64_t in, int64_t out) {
  return linear(declare, name, in, out, kZeros);
}

VectorLayers::VectorLayers(const nn::Declare& declare, const std::string& name, int64_t in, int64_t dim)
    : in_layer(linear(declare, name + ".in_layer", in, dim, {nn::Init::Kind::kNormal, kVectorStd})),
      out_layer(linear(declare, name + ".out_layer", dim, dim, {nn::Init::Kind::kNormal, kVectorStd})) {}

at::Tensor VectorLayers::forward(const at::Tensor& x) const { return out_layer.forward(at::silu(in_layer.forward(x))); }

std::vector<Modulation> modulations(const nn::Linear& lin, const at::Tensor& activated, int64_t parts) {
  const std::vector<at::Tensor> all = lin.forward(activated).unsqueeze(1).chunk(parts, 2);
  if (parts == 2) return {{all[0], all[1], {}}};
  std::vector<Modulation> result;
  for (size_t i = 0; i < all.size(); i += 3) result.push_back({all[i], all[i + 1], all[i + 2]});
  return result;
}

at::Tensor modulated_norm(const at::Tensor& x, const Modulation& modulation) {
  const at::Tensor normed = at::layer_norm(x, {x.size(2)}, {}, {}, kNormEps);
  return at::addcmul(modulation.shift, normed, modulation.scale + 1);
}

at::Tensor add_gated(const at::Tensor& x, const Modulation& modulation, const at::Tensor& y) {
  return at::addcmul(x, modulation.gate, y);
}

HeadNorms::HeadNorms(const nn::Declare& declare, const std::string& name, int64_t head_dim)
    : query_norm(declare, name + ".query_norm.weight", head_dim, kNormEps),
      key_norm(declare, name + ".key_norm.weight", head_dim, kNormEps) {}

Heads split_heads(const at::Tensor& fused, int64_t head_dim, const HeadNorms& norms) {
  const std::vector<at::Tensor> parts = fused.unflatten(2, {3, -1, head_dim}).unbind(2);
  return {norms.query_norm.forward(parts[0]), norms.key_norm.forward(parts[1]), parts[2]};
}

at::Tensor rotate_and_attend(const Heads& heads, const at::Tensor& rotation, const nn::AttentionCore& core) {
  const at::Tensor mixed = core({.q = rotate(heads.q, rotation).transpose(1, 2),
                                 .k = rotate(heads.k, rotation).transpose(1, 2),
                                 .v = heads.v.transpose(1, 2),
                                 .scale = 1.0 / std::sqrt(static_cast<double>(heads.q.size(3))),
                                 .mask = {.causal = false}},
                                nn::MicrobatchContext());
  return mixed.transpose(1, 2).flatten(2);
}

}  // namespace titan::model::flux
