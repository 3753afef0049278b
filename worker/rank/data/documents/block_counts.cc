#include "worker/rank/data/documents/block_counts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "common/base/host/descriptor.h"
#include "common/io/storage/crc32c.h"

namespace titan::data {
namespace {

static_assert(offsetof(BlockCount, bad_lines) + sizeof(int32_t) == BlockCount::kBytes);

// Of the counts and of the place where they lie: nothing written is a wrong sum, too.
uint32_t sum_of(const char* record, size_t bytes, int64_t block) {
  return storage::crc32c(&block, sizeof block, storage::crc32c(record, bytes));
}

// Opened each time: a network file system shows what others wrote to who opens.
host::Descriptor open_anew(const std::string& path, int flags) {
  return host::Descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0666));
}

}  // namespace

template <typename Count>
std::vector<std::optional<Count>> CountsFile<Count>::read(int64_t begin, int64_t end) const {
  std::vector<std::optional<Count>> counts(static_cast<size_t>(end - begin));
  std::vector<char> records(counts.size() * kRecordBytes);
  const host::Descriptor file = open_anew(path_, O_RDONLY);
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
  const host::Descriptor file = open_anew(path_, O_WRONLY | O_CREAT);
  if (file.get() < 0) return;
  (void)!::pwrite(file.get(), record.data(), record.size(), block * kRecordBytes);
}

template class CountsFile<BlockCount>;
template class CountsFile<DocumentLengths>;

}  // namespace titan::data
