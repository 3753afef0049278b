#include "worker/rank/data/documents/line_start.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "common/base/status/status.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/line_reader.h"

namespace titan::data {
namespace {

constexpr size_t kChunk = 16 * 1024;

}  // namespace

absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset, int64_t end) {
  if (offset == 0) return 0;
  // The byte before a line's start ends the line before.
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data_files::ByteSource> source,
                         data_files::ByteSource::open(path, offset - 1));
  std::vector<char> buffer(kChunk);
  for (int64_t at = offset - 1; at < end;) {
    TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(buffer.data(), buffer.size()));
    if (got == 0) return at;
    const void* found = std::memchr(buffer.data(), '\n', got);
    if (found != nullptr) return std::min(end, at + (static_cast<const char*>(found) - buffer.data()) + 1);
    at += static_cast<int64_t>(got);
  }
  return end;
}

// Backwards, to the first byte that tells.
absl::StatusOr<bool> line_before_is_blank(const std::string& path, int64_t line) {
  std::vector<char> buffer(kChunk);
  for (int64_t end = line - 1; end > 0;) {  // Without the end of that line.
    const int64_t begin = std::max<int64_t>(0, end - static_cast<int64_t>(kChunk));
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data_files::ByteSource> source,
                           data_files::ByteSource::open(path, begin));
    TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(buffer.data(), static_cast<size_t>(end - begin)));
    if (got != static_cast<size_t>(end - begin)) return data_files::no_line_at(path, line);
    const std::string_view bytes(buffer.data(), got);
    const size_t told = bytes.find_last_not_of(" \t\r");
    if (told != std::string_view::npos) return bytes[told] == '\n';
    end = begin;
  }
  return true;
}

}  // namespace titan::data
