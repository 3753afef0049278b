#include "worker/rank/model/vision/qwen3_vl.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/rope.h"

namespace titan::model {
namespace {

using models::PatchGrid;
using models::Qwen3VlVisionSpec;
using nn::Init;

// transformers draws every matrix, and the table of positions, with this deviation.
constexpr Init kNormalMatrix{Init::Kind::kNormal, 0.02};
constexpr Init kNoBias{Init::Kind::kZeros};
constexpr double kNormEps = 1e-6;
constexpr double kTheta = 10000;  // Angles of the rotation.

nn::Linear biased_linear(const nn::Declare& declare, const std::string& fqn, int64_t in, int64_t out) {
  return {declare, fqn + ".weight", in, out, kNormalMatrix, &kNoBias};
}

// Reorders patches [height, width, ...] from row-major to Qwen's order: [patches, ...].
at::Tensor in_squares(const at::Tensor& patches, const PatchGrid& grid, int64_t merge) {
  return patches.unflatten(1, {grid.width / merge, merge})
      .unflatten(0, {grid.height / merge, merge})
      .transpose(1, 2)
      .flatten(0, 3);
}

// Returns float64 [to, from]: `to` equally spaced numbers between the first and the last of `from`.
at::Tensor corner_weights(int64_t from, int64_t to) {
  at::Tensor weights = at::zeros({to, from}, at::kDouble);
  for (int64_t i = 0; i < to; ++i) {
    double* const row = weights.mutable_data_ptr<double>() + i * from;
    const double place = to == 1 ? 0 : static_cast<double>(i * (from - 1)) / static_cast<double>(to - 1);
    const auto before = static_cast<int64_t>(place);
    const double part = place - static_cast<double>(before);
    row[before] += 1 - part;
    row[std::min(before + 1, from - 1)] += part;
  }
  return weights;
}

at::Tensor rotation_of(const std::vector<PatchGrid>& grids, const Qwen3VlVisionSpec& spec) {
  const int64_t pairs = spec.head_dim() / 4;  // That rotate by the row, and as many by the column.
  const at::Tensor frequencies = at::pow(kTheta, at::arange(pairs, at::kDouble) / -static_cast<double>(pairs));
  std::vector<at::Tensor> angles;
  for (const PatchGrid& grid : grids) {
    const auto of = [&](int64_t length) { return at::outer(at::arange(length, at::kDouble), frequencies); };
    const at::Tensor rows = of(grid.height).unsqueeze(1).expand({grid.height, grid.width, pairs});
    const at::Tensor columns = of(grid.width).unsqueeze(0).expand({grid.height, grid.width, pairs});
    angles.push_back(in_squares(at::cat({rows, columns}, 2), grid, spec.merge));
  }
  const at::Tensor all = at::cat(angles);
  return at::cat({all.cos(), all.sin()}, 1);
}

}  // namespace

Qwen3VlImages pack_qwen3_vl_images(std::vector<PatchGrid> grids, const Qwen3VlVisionSpec& spec, at::Device device,
                                   at::ScalarType compute) {
  for (const PatchGrid& grid : grids) {
    TORCH_CHECK(grid.height % spec.merge == 0 && grid.width % spec.merge == 0, "images: an image of ", grid.height,
                " x ", grid.width, " patches cannot be merged by ", spec.merge, " x ", spec.merge);
  }
  Qwen3VlImages images;
  static_cast<Images&>(images) = pack_images(std::move(grids));
  images.rotation = device::copy_async(rotation_of(images.grids, spec).to(nn::accumulate_type(compute)), device);
  return images;
}

const Qwen3VlImages& qwen3_vl_images_of(const nn::MicrobatchContext& context) {
  const auto* images = dynamic_cast<const Qwen3VlImages*>(context.extension.get());
  TORCH_CHECK(images != nullptr, "images: the microbatch has none of Qwen3-VL");
  return *images;
}

at::Tensor interpolate_positions(const at::Tensor& table, const std::vector<PatchGrid>& grids, int64_t merge) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(table.size(0)))));
  const int64_t dim = table.size(1);
  TORCH_CHECK(side * side == table.size(0), "positions: a table of ", table.size(0), " rows is not square");
  const at::Tensor exact = table.to(nn::accumulate_type(table.scalar_type()));
  const auto weights = [&](int64_t length) {
    return device::copy_async(corner_weights(side, length).to(exact.scalar_type()), table.device());
  };
  std::vector<at::Tensor> all;
  for (const PatchGrid& grid : grids) {
    const at::Tensor rows = at::matmul(weights(grid.height), exact.view({side, side * dim}));
    const at::Tensor resized = at::matmul(weights(grid.width), rows.view({grid.height, side, dim}));
    all.push_back(in_squares(resized, grid, merge));
  }
  return at::cat(all).to(table.scalar_type());
}

Qwen3VlPatchEmbedding::Qwen3VlPatchEmbedding(const Qwen3VlVisionSpec& spec, Qwen3VlImagesOf images_of)
    : Block("visual.patch_embed"),
      proj(biased_linear(declare(), "visual.patch_embed.proj", spec.patch_values(), spec.dim)),
      pos_embed(
          declare()("visual.pos_embed.weight", {spec.position_side * spec.position_side, spec.dim}, kNormalMatrix)),
      merge_(spec.merge),
      images_of_(std::move(images_of)) {}

at::Tensor Qwen3VlPatchEmbedding::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const Images& images = images_of_(context);
  TORCH_CHECK(input.dim() == 3 && input.size(0) == 1 && input.size(1) == images.patches(), name(),
              ": got patches of the shape ", input.sizes(), ", need [1, ", images.patches(), ", ",
              proj.weight().global_shape[1], "]");
  const at::Tensor& table = pos_embed.weight;
  return proj.forward(input.to(table.scalar_type())) + interpolate_positions(table, images.grids, merge_);
}

PatchMerger::PatchMerger(const nn::Declare& declare, const std::string& fqn, const Qwen3VlVisionSpec& spec,
                         bool norm_after)
    : norm(declare, fqn + ".norm", norm_after ? spec.dim * spec.merge * spec.merge : spec.dim, kNormEps),
      linear_fc1(biased_linear(declare, fqn + ".linear_fc1", spec.dim * spec.merge * spec.merge,
                               spec.dim * spec.merge * spec.merge)),
      linear_fc2(biased_linear(declare, fqn + ".linear_fc2", spec.dim * spec.merge * spec.merge, spec.out_dim)),
      square_(spec.dim * spec.merge * spec.merge),
      norm_after_(norm_after) {}

at::Tensor PatchMerger::forward(const at::Tensor& input) const {
  const auto squares = [&](const at::Tensor& x) { return x.reshape({1, -1, square_}); };
  const at::Tensor normed = norm_after_ ? norm.forward(squares(input)) : squares(norm.forward(input));
  return linear_fc2.forward(at::gelu(linear_fc1.forward(normed)));
}

Qwen3VlVisionLayer::Qwen3VlVisionLayer(const Qwen3VlVisionSpec& spec, int64_t index, Qwen3VlImagesOf images_of)
    : Block(absl::StrCat("visual.blocks.", index)),
      norm1(declare(), name() + ".norm1", spec.dim, kNormEps),
      qkv(biased_linear(declare(), name() + ".attn.qkv", spec.dim, 3 * spec.dim)),
      proj(biased_linear(declare(), name() + ".attn.proj", spec.dim, spec.dim)),
      norm2(declare(), name() + ".norm2", spec.dim, kNormEps),
      linear_fc1(biased_linear(declare(), name() + ".mlp.linear_fc1", spec.dim, spec.ffn_hidden)),
      linear_fc2(biased_linear(declare(), name() + ".mlp.linear_fc2", spec.ffn_hidden, spec.dim)),
      dim_(spec.dim),
      head_dim_(spec.head_dim()),
      images_of_(std::move(images_of)) {
  const auto found = std::find(spec.deepstack_layers.begin(), spec.deepstack_layers.end(), index);
  if (found == spec.deepstack_layers.end()) return;
  deepstack.emplace(declare(), absl::StrCat("visual.deepstack_merger_list.", found - spec.deepstack_layers.begin()),
                    spec, /*norm_after=*/true);
}

at::Tensor Qwen3VlVisionLayer::attention(const at::Tensor& input, const Qwen3VlImages& images) const {
  const std::vector<at::Tensor> parts = qkv.forward(input).unflatten(2, {3, -1, head_dim_}).unbind(2);  // [1, P, H, D]
  const at::Tensor q = nn::apply_rope(parts[0], images.rotation), k = nn::apply_rope(parts[1], images.rotation);
  const at::Tensor mixed = core({.q = q.transpose(1, 2),
                                 .k = k.transpose(1, 2),
                                 .v = parts[2].transpose(1, 2),
                                 .scale = 1.0 / std::sqrt(static_cast<double>(head_dim_)),
                                 .mask = {.documents = true, .causal = false}},
                                images.context);  // [1, H, P, D]
  return proj.forward(mixed.transpose(1, 2).flatten(2));
}

at::Tensor Qwen3VlVisionLayer::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const int64_t carried = input.size(2) - dim_;
  at::Tensor x = input.narrow(2, 0, dim_);
  x = x + attention(norm1.forward(x), images_of_(context));
  x = x + linear_fc2.forward(at::gelu(linear_fc1.forward(norm2.forward(x)), "tanh"));
  std::vector<at::Tensor> columns{x};
  if (carried > 0) columns.push_back(input.narrow(2, dim_, carried));
  if (deepstack) columns.push_back(deepstack->forward(x).reshape({1, x.size(1), -1}));
  return columns.size() == 1 ? x : at::cat(columns, 2);
}

Qwen3VlMerger::Qwen3VlMerger(const Qwen3VlVisionSpec& spec)
    : Block("visual.merger"),
      merger(declare(), "visual.merger", spec, /*norm_after=*/false),
      dim_(spec.dim),
      deepstack_layers_(static_cast<int64_t>(spec.deepstack_layers.size())) {}

at::Tensor Qwen3VlMerger::forward(const at::Tensor& input, const nn::MicrobatchContext&) {
  std::vector<at::Tensor> results{merger.forward(input.narrow(2, 0, dim_))};  // [1, P / merge^2, out_dim]
  for (int64_t layer = 0; layer < deepstack_layers_; ++layer) {
    const int64_t width = (input.size(2) - dim_) / deepstack_layers_;
    results.push_back(input.narrow(2, dim_ + layer * width, width).reshape(results[0].sizes()));
  }
  return at::cat(results, 2);
}

absl::StatusOr<std::vector<std::unique_ptr<nn::Block>>> build_qwen3_vl_vision(const Qwen3VlVisionSpec& spec,
                                                                              const Qwen3VlImagesOf& images_of) {
  if (const std::string bad = models::inconsistency(spec); !bad.empty())
    return absl::InvalidArgumentError(absl::StrCat("vision tower: ", bad));
  std::vector<std::unique_ptr<nn::Block>> blocks;
  blocks.push_back(std::make_unique<Qwen3VlPatchEmbedding>(spec, images_of));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    blocks.push_back(std::make_unique<Qwen3VlVisionLayer>(spec, layer, images_of));
  blocks.push_back(std::make_unique<Qwen3VlMerger>(spec));
  return blocks;
}

}  // namespace titan::model
