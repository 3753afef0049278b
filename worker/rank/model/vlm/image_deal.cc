#include "worker/rank/model/vlm/image_deal.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "worker/rank/data/multimodal/image_shares.h"
#include "worker/rank/data/multimodal/samples.h"

namespace titan::model::vlm {
namespace {

// All images of some rows, each with its patches [P, patch_values].
struct RowImages {
  std::vector<models::PatchGrid> grids;
  std::vector<at::Tensor> patches;
};

RowImages images_of_rows(const at::Tensor& grids, const at::Tensor& patches) {
  RowImages images;
  const auto sides = grids.accessor<int64_t, 3>();
  for (int64_t row = 0; row < grids.size(0); ++row) {
    int64_t first = 0;
    for (int64_t image = 0; image < grids.size(1) && sides[row][image][0] > 0; ++image) {
      const models::PatchGrid grid{.height = sides[row][image][0], .width = sides[row][image][1]};
      images.grids.push_back(grid);
      images.patches.push_back(patches[row].narrow(0, first, grid.patches()));
      first += grid.patches();
    }
  }
  return images;
}

std::vector<int64_t> costs_of(const std::vector<models::PatchGrid>& grids, const ImageAdapter& adapter) {
  std::vector<int64_t> costs;
  for (const models::PatchGrid& grid : grids) costs.push_back(grid.patches() * adapter.flops_per_patch(grid.patches()));
  return costs;
}

}  // namespace

ImageDeal deal_images(const at::Tensor& grids, const at::Tensor& patches, const ImageAdapter& adapter, int rank,
                      int ranks) {
  const RowImages all = images_of_rows(grids, patches);
  const data::ImageShares shares = data::balance_images(costs_of(all.grids, adapter), ranks);
  const int64_t merge = adapter.numbers().merge;
  const auto tokens_of = [&](size_t image) { return data::image_tokens(all.grids[image], merge); };
  std::vector<int64_t> begins(all.grids.size());  // Each image's first row among those of its rank.
  int64_t padded = 1;
  for (const std::vector<int64_t>& share : shares.images) {
    int64_t begin = 0;
    for (const int64_t image : share) {
      begins[static_cast<size_t>(image)] = begin;
      begin += tokens_of(static_cast<size_t>(image));
    }
    padded = std::max(padded, begin);
  }
  std::vector<int64_t> rows;
  for (size_t image = 0; image < all.grids.size(); ++image) {
    const size_t before = rows.size();
    rows.resize(before + static_cast<size_t>(tokens_of(image)));
    std::iota(rows.begin() + static_cast<std::ptrdiff_t>(before), rows.end(),
              shares.places[image].rank * padded + begins[image]);
  }
  ImageDeal deal{.padded_rows = padded, .rows = at::tensor(rows, at::kLong)};
  std::vector<at::Tensor> used;
  for (const int64_t image : shares.images[static_cast<size_t>(rank)]) {
    deal.grids.push_back(all.grids[static_cast<size_t>(image)]);
    used.push_back(all.patches[static_cast<size_t>(image)]);
  }
  if (used.empty()) {
    deal.grids.push_back({.height = merge, .width = merge});
    used.push_back(at::zeros({merge * merge, patches.size(2)}, patches.options()));
  }
  deal.patches = at::cat(used).unsqueeze(0);
  return deal;
}

}  // namespace titan::model::vlm
