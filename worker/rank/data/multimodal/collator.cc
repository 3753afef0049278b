#include "worker/rank/data/multimodal/collator.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/rows/stream_state.h"

namespace titan::data {
namespace {

constexpr int64_t kMaxSkipped = 10000;

int64_t images_of(const MultimodalRow& row) {
  return std::accumulate(row.begin(), row.end(), int64_t{0}, [](int64_t sum, const MultimodalSample& sample) {
    return sum + static_cast<int64_t>(sample.images.size());
  });
}

}  // namespace

std::vector<std::vector<size_t>> pack_samples(const std::vector<SampleSize>& sizes, int64_t seq_len,
                                              int64_t max_images) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a].tokens > sizes[b].tokens; });
  std::vector<std::vector<size_t>> rows;
  std::vector<int64_t> images;                 // Number of images in each row.
  std::set<std::pair<int64_t, size_t>> space;  // Free tokens of a row, and the row.
  for (const size_t sample : order) {
    const SampleSize& size = sizes[sample];
    auto found = space.lower_bound({size.tokens, 0});
    while (found != space.end() && images[found->second] + size.images > max_images) ++found;
    int64_t left = seq_len;
    size_t row = rows.size();
    if (found == space.end()) {
      rows.emplace_back();
      images.push_back(0);
    } else {
      std::tie(left, row) = *found;
      space.erase(found);
    }
    rows[row].push_back(sample);
    images[row] += size.images;
    if (left > size.tokens) space.emplace(left - size.tokens, row);
  }
  for (std::vector<size_t>& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

absl::StatusOr<Collator> Collator::open(std::unique_ptr<SampleSource> source, const MultimodalOptions& options) {
  TITAN_RETURN_IF_ERROR(check_options(options));
  return Collator(std::move(source), options);
}

absl::Status Collator::fill_window() {
  start_ = source_->position();
  given_ = 0;
  std::vector<MultimodalSample> window;
  std::vector<SampleSize> sizes;
  const int64_t size = std::max<int64_t>(options_.packing_window, 1);
  while (static_cast<int64_t>(window.size()) < size) {
    absl::StatusOr<MultimodalSample> sample = source_->next();
    if (absl::IsOutOfRange(sample.status())) break;
    TITAN_RETURN_IF_ERROR(sample.status());
    if (const absl::Status bad = check_sample(*sample, options_); !bad.ok()) {
      warnings_.push_back(absl::StrCat("a sample was skipped: ", bad.message()));
      if (++skipped_ < kMaxSkipped) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the last ", kMaxSkipped, " samples were all skipped, the last one because ", bad.message()));
    }
    skipped_ = 0;
    sizes.push_back({static_cast<int64_t>(sample->tokens.size()), static_cast<int64_t>(sample->images.size())});
    window.push_back(*std::move(sample));
  }
  for (const std::vector<size_t>& packed : pack_samples(sizes, options_.seq_len, options_.max_images)) {
    MultimodalRow& row = rows_.emplace_back();
    for (const size_t sample : packed) row.push_back(std::move(window[sample]));
  }
  return absl::OkStatus();
}

// Returns whether there is a next row. Reads the next window only when its first row is needed.
absl::StatusOr<bool> Collator::settle_window() {
  if (rows_.empty()) TITAN_RETURN_IF_ERROR(fill_window());
  return !rows_.empty();
}

absl::StatusOr<MultimodalBatch> Collator::next() {
  std::vector<MultimodalRow> batch;
  int64_t images = 0;
  while (static_cast<int64_t>(batch.size()) < options_.rows) {
    TITAN_ASSIGN_OR_RETURN(const bool more, settle_window());
    if (!more) break;
    images += images_of(rows_.front());
    if (images > options_.max_images) break;
    batch.push_back(std::move(rows_.front()));
    rows_.pop_front();
    ++given_;
  }
  if (batch.empty()) return absl::OutOfRangeError("the dataset is at its end");
  batch.resize(static_cast<size_t>(options_.rows));
  return collate(std::move(batch), options_);
}

nlohmann::json Collator::state() const {
  if (rows_.empty()) return {{"window", source_->position()}, {"rows", 0}};
  return {{"window", start_}, {"rows", given_}};
}

absl::Status Collator::restore(const nlohmann::json& state) {
  if (!state.is_object() || !state.contains("window"))
    return absl::InvalidArgumentError("the data position of the checkpoint has no \"window\"");
  TITAN_ASSIGN_OR_RETURN(const int64_t rows, state_number(state, "rows"));
  rows_.clear();
  given_ = skipped_ = 0;
  TITAN_RETURN_IF_ERROR(source_->seek(state["window"]));
  if (rows == 0) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(fill_window());
  if (rows >= static_cast<int64_t>(rows_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is after row ", rows,
                                                   " of a window that has ", rows_.size(),
                                                   " now: the dataset or the options have changed"));
  }
  rows_.erase(rows_.begin(), rows_.begin() + rows);
  given_ = rows;
  return absl::OkStatus();
}

}  // namespace titan::data
