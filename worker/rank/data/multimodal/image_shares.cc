#include "worker/rank/data/multimodal/image_shares.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace titan::data {

ImageShares balance_images(const std::vector<int64_t>& costs, int ranks) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
  using Load = std::pair<int64_t, int>;  // Sum of costs, and the rank.
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int rank = 0; rank < ranks; ++rank) least.emplace(0, rank);
  ImageShares shares{.places = std::vector<ImageShares::Place>(costs.size()),
                     .images = std::vector<std::vector<int64_t>>(ranks)};
  for (const int64_t image : order) {
    const auto [load, rank] = least.top();
    least.pop();
    least.emplace(load + costs[image], rank);
    shares.places[image].rank = rank;
  }
  for (size_t image = 0; image < costs.size(); ++image) {
    std::vector<int64_t>& own = shares.images[shares.places[image].rank];
    shares.places[image].index = static_cast<int64_t>(own.size());
    own.push_back(static_cast<int64_t>(image));
  }
  return shares;
}

std::vector<int64_t> ImageShares::gathered_order() const {
  std::vector<int64_t> first(images.size());  // Number of images of lower ranks.
  for (size_t rank = 1; rank < images.size(); ++rank)
    first[rank] = first[rank - 1] + static_cast<int64_t>(images[rank - 1].size());
  std::vector<int64_t> order;
  order.reserve(places.size());
  for (const Place& place : places) order.push_back(first[place.rank] + place.index);
  return order;
}

}  // namespace titan::data
