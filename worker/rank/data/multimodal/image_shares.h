#pragma once

#include <cstdint>
#include <vector>

namespace titan::data {

// Which rank encodes which image of a global batch.
struct ImageShares {
  struct Place {
    int rank = 0;
    int64_t index = 0;  // Number of the image among those of the rank.
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> places;                 // Where each image is encoded.
  std::vector<std::vector<int64_t>> images;  // Images of each rank, ascending: the inverse of `places`.

  // Returns, for each image, its number in the concatenation of all ranks' images in the order of ranks (an all-gather
  // of their results).
  std::vector<int64_t> gathered_order() const;
};

// Assigns images to ranks so that the largest sum of costs is small: the costliest first, each to the rank with the
// smallest sum so far (longest processing time; Graham, 1969: at most 4/3 of the optimum). Ties go to the earlier image
// and the lower rank, so all ranks compute the same. `costs` are not negative, such as the FLOPs of each image, and
// `ranks` is at least 1.
ImageShares balance_images(const std::vector<int64_t>& costs, int ranks);

}  // namespace titan::data
