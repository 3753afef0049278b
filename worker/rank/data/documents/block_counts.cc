#include "worker/rank/data/documents/block_counts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/host/descriptor.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::data {
namespace {

constexpr size_t kKeptWindows = 3;
constexpr std::chrono::milliseconds kPause(2);

static_assert(offsetof(BlockCount, bad_lines) + sizeof(int32_t) == BlockCount::kBytes);

// Includes the block's number, so that an empty record, or one at the wrong place, has a wrong checksum.
uint32_t sum_of(const char* record, size_t bytes, int64_t block) {
  return storage::crc32c(&block, sizeof block, storage::crc32c(record, bytes));
}

// Opens the file each time, because a network file system shows other hosts' writes only to a new open().
host::Descriptor open_counts_file(const std::string& path, int flags) {
  return host::Descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0666));
}

}  // namespace

template <typename Count>
std::vector<std::optional<Count>> CountsFile<Count>::read(int64_t begin, int64_t end) const {
  std::vector<std::optional<Count>> counts(static_cast<size_t>(end - begin));
  std::vector<char> records(counts.size() * kRecordBytes);
  const host::Descriptor file = open_counts_file(path_, O_RDONLY);
  if (file.get() < 0 || ::pread(file.get(), records.data(), records.size(), begin * kRecordBytes) <= 0) return counts;
  for (size_t i = 0; i < counts.size(); ++i) {
    const char* record = records.data() + i * kRecordBytes;
    uint32_t sum = 0;
    std::memcpy(&sum, record + Count::kBytes, sizeof sum);
    if (sum != sum_of(record, Count::kBytes, begin + static_cast<int64_t>(i))) continue;
    std::memcpy(static_cast<void*>(&counts[i].emplace()), record, Count::kBytes);
  }
  return counts;
}

template <typename Count>
void CountsFile<Count>::write(int64_t block, const Count& count) const {
  std::array<char, kRecordBytes> record;
  std::memcpy(record.data(), &count, Count::kBytes);
  const uint32_t sum = sum_of(record.data(), Count::kBytes, block);
  std::memcpy(record.data() + Count::kBytes, &sum, sizeof sum);
  const host::Descriptor file = open_counts_file(path_, O_WRONLY | O_CREAT);
  if (file.get() < 0) return;
  (void)!::pwrite(file.get(), record.data(), record.size(), block * kRecordBytes);
}

template class CountsFile<BlockCount>;
template class CountsFile<DocumentLengths>;

template <typename Count>
SharedCounts<Count>::SharedCounts(CountsFile<Count> file, int64_t blocks, int rank, int ranks, Counting counting,
                                  absl::Duration timeout)
    : file_(std::move(file)),
      blocks_(blocks),
      rank_(rank),
      ranks_(ranks),
      counting_(std::move(counting)),
      timeout_(timeout) {}

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
  TITAN_RETURN_IF_ERROR(count_own(window + 1));  // So that no rank waits for it in the next window.
  const auto timeout = absl::ToChronoMilliseconds(timeout_);
  auto deadline = std::chrono::steady_clock::now() + (alone_ ? std::chrono::milliseconds(0) : timeout);
  size_t before = static_cast<size_t>(ranks_) + 1;
  while (true) {
    const Missing missing = find_missing(window);
    if (missing.blocks.empty()) {
      alone_ = alone_ && missing.of_others_known == 0;
      return absl::OkStatus();
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < deadline) {
      if (std::exchange(before, missing.blocks.size()) > missing.blocks.size()) deadline = now + timeout;
      std::this_thread::sleep_for(kPause);
      continue;
    }
    alone_ = missing.of_others_known == 0;
    // Start at this rank's place, so that several ranks that stop waiting count different blocks.
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

// Returns the missing counts of a window. If none is missing, stores the window in windows_.
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
