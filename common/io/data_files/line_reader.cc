#include "common/io/data_files/line_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/json_row.h"

namespace titan::data_files {
namespace {

constexpr size_t kReadChunk = 1024 * 1024, kMiddleChunk = 64 * 1024, kMinChunk = 16 * 1024;

}  // namespace

bool blank(std::string_view line) { return without_mark(line).find_first_not_of(" \t\r\n") == std::string_view::npos; }

absl::StatusOr<LineReader> LineReader::open(const std::string& path, const FilePlace& place, int64_t wanted,
                                            RemoteFiles* remote) {
  LineReader reader(path, place);
  reader.chunk_ = std::clamp<size_t>(static_cast<size_t>(wanted), kMinChunk, kReadChunk);
  // The byte before a line is the end of the previous line; otherwise this is not the file of the saved place.
  const int64_t before = place.offset > 0 ? 1 : 0;
  TITAN_ASSIGN_OR_RETURN(reader.source_, ByteSource::open(path, place.offset - before, remote));
  if (before == 0) return reader;
  TITAN_RETURN_IF_ERROR(reader.fill().status());
  if (reader.buffer_.empty() || (reader.buffer_[0] != '\n' && reader.buffer_.size() > 1)) {
    return no_line_at(path, place.offset);
  }
  reader.consumed_ = 1;
  return reader;
}

LineReader LineReader::over(const std::string& path, const FilePlace& place, std::unique_ptr<ByteSource> bytes) {
  LineReader reader(path, place);
  reader.chunk_ = kMiddleChunk;
  reader.source_ = std::move(bytes);
  return reader;
}

// Appends bytes to buffer_ and returns false at the end of the file.
absl::StatusOr<bool> LineReader::fill() {
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + chunk_);
  absl::StatusOr<size_t> got = source_->read(buffer_.data() + before, chunk_);
  buffer_.resize(before + (got.ok() ? *got : 0));
  if (!got.ok()) return got.status();
  return *got > 0;
}

absl::StatusOr<bool> LineReader::next(std::string_view& line) {
  size_t end = buffer_.find('\n', consumed_);
  while (end == std::string::npos) {
    const size_t unread = buffer_.size() - consumed_;
    TITAN_ASSIGN_OR_RETURN(const bool more, fill());
    if (!more) break;
    end = buffer_.find('\n', unread);
  }
  if (end == std::string::npos && consumed_ == buffer_.size()) return false;
  const size_t length = (end == std::string::npos ? buffer_.size() : end + 1) - consumed_;
  line = std::string_view(buffer_).substr(consumed_, length);
  consumed_ += length;
  place_.offset += static_cast<int64_t>(length);
  ++place_.line;
  return true;
}

absl::Status no_line_at(const std::string& file, int64_t offset) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": no line starts at byte ", offset,
                                                 ", where the checkpoint's data position is: the dataset has changed"));
}

std::string LineReader::name() const { return absl::StrCat(path_, ":", place_.line); }

}  // namespace titan::data_files
