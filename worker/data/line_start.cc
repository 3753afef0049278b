#include "worker/data/line_start.h"

#include <cstring>
#include <memory>
#include <vector>

#include "common/status/status.h"
#include "worker/data/byte_source.h"

namespace titan::data {

absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset) {
  if (offset == 0) return 0;
  // The byte before a line's start ends the line before.
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::open(path, offset - 1));
  std::vector<char> buffer(16 * 1024);
  for (int64_t at = offset - 1;;) {
    TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(buffer.data(), buffer.size()));
    if (got == 0) return at;
    const void* found = std::memchr(buffer.data(), '\n', got);
    if (found != nullptr) return at + (static_cast<const char*>(found) - buffer.data()) + 1;
    at += static_cast<int64_t>(got);
  }
}

}  // namespace titan::data
