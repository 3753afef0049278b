// A vision-language model in the table: rows of texts with images of different shapes and without images, a vision
// tower, and a decoder whose blocks language.h describes.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "common/plan/models/vision.h"
#include "common/plan/models/vision_activations.h"
#include "tests/numerics/mesh_table/language.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/model/vlm/image_deal.h"
#include "worker/rank/model/vlm/inputs.h"
#include "worker/rank/model/vlm/objective.h"
#include "worker/rank/model/vlm/siglip2_adapter.h"
#include "worker/rank/nn/loss.h"

namespace titan::testing {
namespace {

using mesh::Axis;
using models::PatchGrid;

constexpr int64_t kImage = 1;  // The token of patches when there is no tokenizer.
constexpr int64_t kIndexBytes = 8;

// The images of a row. All of some microbatches' rows have none.
const std::vector<PatchGrid>& images_of_row(int64_t row) {
  static const auto& kinds =
      *new std::vector<std::vector<PatchGrid>>{{{2, 3}, {1, 2}}, {}, {{3, 3}}, {{1, 1}, {2, 2}, {1, 4}}};
  return kinds[static_cast<size_t>(row * row + row / 4) % kinds.size()];
}

// Returns tokens [rows, seq_len + 1] with the patches' tokens at places in every part of a row.
at::Tensor tokens_with_images(const MeshJob& job, int step) {
  at::Tensor tokens = tokens_of_step(job, step);
  tokens.masked_fill_(tokens.eq(kImage), 2);
  for (int64_t row = 0; row < job.global_batch; ++row) {
    int64_t place = 2 + row % 3;
    for (const PatchGrid& grid : images_of_row(row)) {
      tokens[row].narrow(0, place, grid.patches()).fill_(kImage);
      place += 11;
    }
  }
  return tokens;
}

// A document ends with its end-of-sequence token.
at::Tensor documents_of(const at::Tensor& tokens, int64_t eos) {
  return at::constant_pad_nd(tokens.eq(eos).to(at::kLong).cumsum(1).slice(1, 0, tokens.size(1) - 1), {1, 0});
}

data::Batch images_of_step(const MeshJob& job, int step) {
  const int64_t values = job.spec.vision->patch_values();
  constexpr int64_t kImages = 3, kPatches = 9;  // The most of a row.
  const at::Tensor grids = at::zeros({job.global_batch, kImages, 2}, at::kLong);
  for (int64_t row = 0; row < job.global_batch; ++row) {
    for (size_t i = 0; i < images_of_row(row).size(); ++i) {
      const PatchGrid& grid = images_of_row(row)[i];
      grids[row][static_cast<int64_t>(i)].copy_(at::tensor({grid.height, grid.width}, at::kLong));
    }
  }
  const at::Tensor places = at::arange(job.global_batch * kPatches * values, at::kDouble) + 1000 * step;
  const at::Tensor pixels = at::sin(places * places * 0.37).view({job.global_batch, kPatches, values});
  return {{model::vlm::kGrids, grids}, {model::vlm::kPatches, pixels.to(at::kFloat)}};
}

// The images that a rank encodes for a microbatch. Every step has images of the same shapes.
const model::Images& images_of(const RankShare& share, int64_t microbatch) {
  static auto& known = *new std::map<std::array<int64_t, 4>, std::shared_ptr<model::Images>>;
  const int64_t first = share.rows * (share.microbatches * share.mesh.index(share.rank, Axis::kBatch) + microbatch);
  const int rank = share.mesh.index(share.rank, Axis::kContext), ranks = static_cast<int>(share.context);
  const auto [place, is_new] = known.try_emplace({first, share.rows, rank, ranks});
  if (is_new) {
    const data::Batch batch = images_of_step(share.job, 0).narrow(first, share.rows);
    const auto adapter = model::vlm::siglip2_adapter(*share.spec.vision);
    const model::vlm::ImageDeal deal =
        model::vlm::deal_images(batch.at(model::vlm::kGrids), batch.at(model::vlm::kPatches), *adapter, rank, ranks);
    place->second = adapter->pack(deal.grids, at::kCPU);
    place->second->padded_patches = deal.padded_rows;
  }
  return *place->second;
}

bool is_tower_layer(const std::string& block) { return absl::StartsWith(block, "encoder.layers."); }

bool by_operation(const RankShare& share) {
  const auto& ac = share.job.config.activation_checkpoint;
  return ac.mode == "selective" && ac.selective_ac_option == "op";
}

class VlmTable final : public TableModel {
 public:
  data::Batch rows_of_step(const MeshJob& job, int step, int64_t first, int64_t count) const override {
    const at::Tensor tokens = tokens_with_images(job, step), own = tokens.slice(1, 0, tokens.size(1) - 1).contiguous();
    const at::Tensor labels = tokens.slice(1, 1).clone();
    labels.masked_fill_(labels.eq(3).logical_or_(labels.eq(kImage)), nn::kIgnoreIndex);
    const data::Batch images = images_of_step(job, step);
    const data::Batch all{{data::kTokens, own},
                          {data::kLabels, labels},
                          {data::kDocuments, documents_of(own, job.spec.eos_id)},
                          {model::vlm::kGrids, images.at(model::vlm::kGrids)},
                          {model::vlm::kPatches, images.at(model::vlm::kPatches)}};
    return all.narrow(first, count);
  }
  int64_t loss_terms(const MeshJob& job, int step) const override {
    return nn::count_valid(rows_of_step(job, step, 0, job.global_batch).at(data::kLabels)).item<int64_t>();
  }
  std::unique_ptr<model::Objective> objective(const MeshJob& job) const override {
    return std::make_unique<model::vlm::VlmObjective>(job.spec, model::vlm::siglip2_adapter(*job.spec.vision));
  }

  int64_t tokens(const RankShare& share) const override { return language_table_model().tokens(share); }
  int64_t edge_tokens(const RankShare& share) const override { return language_table_model().edge_tokens(share); }
  // Tensor ranks have the whole tower, and each computes its whole gradient.
  Part cut(const RankShare& share, const models::ParameterSpec& whole) const override {
    if (models::is_vision_parameter(whole.fqn)) return {whole.fqn, whole.shape};
    return language_table_model().cut(share, whole);
  }
  bool embeds_tokens() const override { return true; }
  // A bias of keys adds the same to all scores of a query.
  bool has_no_gradient(const std::string& fqn) const override { return absl::EndsWith(fqn, "k_proj.bias"); }

  // Context ranks exchange the tower's results. With sequence parallelism each tensor rank places those of its tokens.
  void add_traffic(const RankShare& share, const std::string& block, TrafficCounts& traffic) const override {
    if (share.is_tower(block)) return;
    add_language_traffic(share, block, traffic);
    if (block != "tok_embeddings") return;
    for (int64_t i = 0; i < share.microbatches; ++i) {
      const int64_t results = share.context * images_of(share, i).padded_patches * share.spec.dim * share.bytes;
      if (share.context > 1) {
        traffic.add("cp", "all_gather", 1, results);
        traffic.add("cp", "reduce_scatter", 1, results);
      }
      if (share.tensor > 1 && share.sequence) traffic.add("tp", "all_reduce", 1, results);
    }
  }

  int64_t product_flops(const RankShare& share) const override {
    int64_t sum = language_product_flops(share);
    for (int64_t i = 0; i < share.microbatches; ++i) {
      const std::vector<PatchGrid>& grids = images_of(share, i).grids;
      for (const std::string& block : share.blocks()) {
        if (share.is_tower(block)) sum += tower_products(share, block, grids);
      }
    }
    return sum;
  }

  // Every patch of an image sees all of it. Forward: the scores and their product with the values. Backward: the scores
  // again, and the gradients of queries, keys, weights and values.
  int64_t attention_flops(const RankShare& share) const override {
    int64_t sum = language_attention_flops(share), scores = 0;
    for (int64_t i = 0; i < share.microbatches; ++i) {
      for (const PatchGrid& grid : images_of(share, i).grids) scores += grid.patches() * grid.patches();
    }
    for (const std::string& block : share.blocks()) {
      if (!is_tower_layer(block)) continue;
      const int64_t passes = by_operation(share) ? 1 : share.passes(block);
      sum += (2 * passes + 5) * 2 * scores * share.spec.vision->dim;
    }
    return sum;
  }

  // The closed form of memory estimates. The embedding keeps the tower's result, and for each token its row of that.
  int64_t bytes_for_backward(const RankShare& share, const std::string& block, int64_t microbatch) const override {
    const int64_t patches = patches_of(share, microbatch);
    if (!share.is_tower(block)) {
      const int64_t bytes = language_bytes_for_backward(share, block, microbatch);
      if (block != "tok_embeddings") return bytes;
      return bytes + patches * share.spec.dim * share.bytes + share.edge_tokens * (kIndexBytes + 1);
    }
    const std::vector<std::string> names = models::vision_block_names(*share.spec.vision);
    const auto place = static_cast<size_t>(std::find(names.begin(), names.end(), block) - names.begin());
    const models::BlockActivations kept =
        models::block_activations(*share.spec.vision, {.patches = patches, .element_bytes = share.bytes}).at(place);
    if (share.passes(block) == 1) return kept.input + kept.graph;
    return kept.input + (by_operation(share) ? kept.by_operation : 0);
  }

  // Both factors of each matrix's gradient, and the gradients of everything else.
  int64_t bytes_for_weights(const RankShare& share, const std::string& block, int64_t microbatch) const override {
    if (!share.is_tower(block)) return language_bytes_for_weights(share, block, microbatch);
    const models::VisionSpec& vision = *share.spec.vision;
    const int64_t patches = patches_of(share, microbatch);
    int64_t elements = 0;
    for (const Part& part : share.parts_of(block)) {
      if (part.shape.size() == 1 || absl::StrContains(part.fqn, "position_embedding")) elements += part.numel();
    }
    if (block == "encoder.embeddings") {
      elements += patches * (vision.dim + (share.bytes == 4 ? 0 : vision.patch_values()));  // Pixels are fp32.
    } else if (is_tower_layer(block)) {
      elements += patches * (8 * vision.dim + 2 * vision.ffn_hidden);
    } else {
      elements += patches * (3 * vision.dim + vision.out_dim);
    }
    return elements * share.bytes;
  }

 private:
  static int64_t patches_of(const RankShare& share, int64_t microbatch) {
    return images_of(share, microbatch).patches();
  }

  // A product runs in each forward pass and costs twice as much in the backward pass, but pixels need no gradients.
  // Positions are resized by two products for each shape of an image, whose other factors are constant.
  static int64_t tower_products(const RankShare& share, const std::string& block, const std::vector<PatchGrid>& grids) {
    int64_t patches = 0, sum = 0;
    for (const PatchGrid& grid : grids) patches += grid.patches();
    const models::VisionSpec& vision = *share.spec.vision;
    for (const Part& part : share.parts_of(block)) {
      if (!part.is_matrix()) continue;
      const bool reads_pixels = absl::StrContains(part.fqn, "patch_embedding");
      if (!absl::StrContains(part.fqn, "position_embedding")) {
        sum += (2 * share.passes(block) + (reads_pixels ? 2 : 4)) * patches * part.numel();
        continue;
      }
      std::set<std::pair<int64_t, int64_t>> shapes;
      for (const PatchGrid& grid : grids) shapes.emplace(grid.height, grid.width);
      for (const auto& [height, width] : shapes)
        sum += 4 * height * vision.position_side * vision.dim * (vision.position_side + width);
    }
    return sum;
  }
};

}  // namespace

const TableModel& vlm_table_model() {
  static const VlmTable model;
  return model;
}

}  // namespace titan::testing
