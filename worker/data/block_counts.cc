#include "worker/data/block_counts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "common/storage/crc32c.h"

namespace titan::data {
namespace {

struct Record {
  int64_t tokens = 0;
  int32_t documents = 0, lines = 0, bad_lines = 0;
  uint32_t sum = 0;
};
static_assert(sizeof(Record) == 24);

// Of the counts and of the place where they lie: nothing written is a wrong sum, too.
uint32_t sum_of(const Record& record, int64_t block) {
  return storage::crc32c(&block, sizeof block, storage::crc32c(&record, offsetof(Record, sum)));
}

class Descriptor {
 public:
  // Opened each time: a network file system shows what others wrote to who opens.
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

std::vector<std::optional<BlockCount>> BlockCounts::read(int64_t begin, int64_t end) const {
  std::vector<std::optional<BlockCount>> counts(static_cast<size_t>(end - begin));
  std::vector<Record> records(counts.size());
  const Descriptor file(path_, O_RDONLY);
  const auto bytes = static_cast<ssize_t>(records.size() * sizeof(Record));
  if (file.get() < 0 || ::pread(file.get(), records.data(), bytes, begin * static_cast<off_t>(sizeof(Record))) <= 0) {
    return counts;
  }
  for (size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    if (record.sum != sum_of(record, begin + static_cast<int64_t>(i))) continue;
    counts[i] = BlockCount{record.tokens, record.documents, record.lines, record.bad_lines};
  }
  return counts;
}

void BlockCounts::write(int64_t block, const BlockCount& count) const {
  Record record{count.tokens, count.documents, count.lines, count.bad_lines};
  record.sum = sum_of(record, block);
  const Descriptor file(path_, O_WRONLY | O_CREAT);
  if (file.get() < 0) return;
  (void)!::pwrite(file.get(), &record, sizeof record, block * static_cast<off_t>(sizeof record));
}

}  // namespace titan::data
