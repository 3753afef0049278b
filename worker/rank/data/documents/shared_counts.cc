#include "worker/rank/data/documents/shared_counts.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/base/status/status.h"

namespace titan::data {
namespace {

constexpr size_t kKeptWindows = 3;
constexpr std::chrono::milliseconds kPause(2);

}  // namespace

template <typename Count>
SharedCounts<Count>::SharedCounts(CountsFile<Count> file, int64_t blocks, int rank, int ranks, Counting counting,
                                  absl::Duration patience)
    : file_(std::move(file)),
      blocks_(blocks),
      rank_(rank),
      ranks_(ranks),
      counting_(std::move(counting)),
      patience_(patience) {}

template <typename Count>
absl::StatusOr<Count> SharedCounts<Count>::get(int64_t block) {
  const int64_t window = block / ranks_;
  if (!windows_.contains(window)) {
    TITAN_RETURN_IF_ERROR(load(window));
  }
  return windows_[window][static_cast<size_t>(block % ranks_)];
}

template <typename Count>
absl::Status SharedCounts<Count>::load(int64_t window) {
  if (windows_.size() >= kKeptWindows) windows_.clear();
  TITAN_RETURN_IF_ERROR(count_own(window));
  TITAN_RETURN_IF_ERROR(count_own(window + 1));  // So that nobody waits there.
  const auto patience = absl::ToChronoMilliseconds(patience_);
  auto deadline = std::chrono::steady_clock::now() + (alone_ ? std::chrono::milliseconds(0) : patience);
  size_t before = static_cast<size_t>(ranks_) + 1;
  while (true) {
    const Missing missing = find_missing(window);
    if (missing.blocks.empty()) {
      alone_ = alone_ && missing.of_others_known == 0;
      return absl::OkStatus();
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < deadline) {
      if (std::exchange(before, missing.blocks.size()) > missing.blocks.size()) deadline = now + patience;
      std::this_thread::sleep_for(kPause);
      continue;
    }
    alone_ = missing.of_others_known == 0;
    // From this rank's place on, so that several who are tired of waiting take different ones.
    const auto mine = std::lower_bound(missing.blocks.begin(), missing.blocks.end(), window * ranks_ + rank_);
    TITAN_RETURN_IF_ERROR(count(mine == missing.blocks.end() ? missing.blocks.front() : *mine));
  }
}

template <typename Count>
absl::Status SharedCounts<Count>::count_own(int64_t window) {
  const int64_t own = window * ranks_ + rank_;
  if (own >= blocks_ || file_.read(own, own + 1)[0].has_value()) return absl::OkStatus();
  return count(own);
}

template <typename Count>
absl::Status SharedCounts<Count>::count(int64_t block) {
  TITAN_ASSIGN_OR_RETURN(const Count found, counting_(block));
  ++counted_;
  own_[block] = found;
  file_.write(block, found);
  return absl::OkStatus();
}

// Keeps the window when nothing of it is missing.
template <typename Count>
typename SharedCounts<Count>::Missing SharedCounts<Count>::find_missing(int64_t window) {
  Missing missing;
  const int64_t begin = window * ranks_, end = std::min(begin + ranks_, blocks_);
  const std::vector<std::optional<Count>> found = file_.read(begin, end);
  looked_up_ += end - begin;
  std::vector<Count> counts;
  for (int64_t block = begin; block < end; ++block) {
    const auto own = own_.find(block);
    const std::optional<Count>& known = found[static_cast<size_t>(block - begin)];
    if (own != own_.end()) {
      counts.push_back(own->second);
    } else if (known.has_value()) {
      counts.push_back(*known);
      ++missing.of_others_known;
    } else {
      missing.blocks.push_back(block);
    }
  }
  if (!missing.blocks.empty()) return missing;
  own_.erase(own_.begin(), own_.lower_bound(end));
  windows_[window] = std::move(counts);
  return missing;
}

template class SharedCounts<BlockCount>;
template class SharedCounts<DocumentLengths>;

}  // namespace titan::data
