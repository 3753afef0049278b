#include "worker/rank/data/rows/source_mix.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace titan::data {
namespace {

using Wide = __int128;  // Rows times weights.

}  // namespace

SourceMix::SourceMix(std::vector<WeightsFrom> schedule) : schedule_(std::move(schedule)) {
  const size_t sources = schedule_.front().weights.size();
  place_.weights.resize(sources);
  place_.dealt.resize(sources);
  place_.ended.resize(sources);
}

// Other weights than the newest rows were dealt by begin to count anew: nobody is to catch up on what they had not
// promised.
void SourceMix::settle_weights() {
  const auto behind = std::upper_bound(schedule_.begin() + 1, schedule_.end(), place_.row,
                                       [](int64_t row, const WeightsFrom& weights) { return row < weights.row; });
  wanted_ = (behind - 1)->weights;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (place_.ended[i]) wanted_[i] = 0;
  }
  if (wanted_ == place_.weights) return;
  place_.weights = wanted_;
  std::fill(place_.dealt.begin(), place_.dealt.end(), 0);
}

std::optional<size_t> SourceMix::source() {
  settle_weights();
  const std::vector<int64_t>&weights = place_.weights, &dealt = place_.dealt;
  const Wide all = std::accumulate(weights.begin(), weights.end(), Wide{0});
  const Wide next = std::accumulate(dealt.begin(), dealt.end(), Wide{1});
  std::optional<size_t> first;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool begun = Wide{dealt[i]} * all < next * weights[i];
    if (!begun) continue;
    // Its row is due by (dealt + 1) / share.
    if (!first || (Wide{dealt[i]} + 1) * weights[*first] < (Wide{dealt[*first]} + 1) * weights[i]) first = i;
  }
  return first;
}

void SourceMix::deal(size_t source) {
  ++place_.dealt[source];
  ++place_.row;
}

}  // namespace titan::data
