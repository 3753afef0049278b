#include "worker/rank/data/tokens/checked_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::data {

CheckedFile::CheckedFile(std::string path, std::shared_ptr<storage::ReadableFile> file,
                         std::shared_ptr<storage::ReadableFile> sums, const Stretch& stretch)
    : path_(std::move(path)), file_(std::move(file)), sums_(std::move(sums)), stretch_(stretch) {}

absl::Status CheckedFile::read(int64_t offset, int64_t bytes, char* out) {
  if (offset < 0 || bytes < 0 || offset > stretch_.size - bytes) {
    return absl::DataLossError(absl::StrCat(path_, ": bytes ", offset, " to ", offset + bytes,
                                            " are needed, but there are only ", stretch_.size,
                                            ": the file does not match its index; make it again"));
  }
  if (sums_ == nullptr) return file_->read(stretch_.begin + offset, bytes, out);
  while (bytes > 0) {
    const int64_t block = offset / stretch_.block, at = offset % stretch_.block;
    TITAN_RETURN_IF_ERROR(load(block));
    const int64_t part = std::min(bytes, static_cast<int64_t>(buffer_.size()) - at);
    std::memcpy(out, buffer_.data() + at, static_cast<size_t>(part));
    out += part;
    offset += part;
    bytes -= part;
  }
  return absl::OkStatus();
}

absl::Status CheckedFile::load(int64_t block) {
  if (block == loaded_) return absl::OkStatus();
  loaded_ = -1;
  const int64_t begin = block * stretch_.block;
  buffer_.resize(static_cast<size_t>(std::min(stretch_.block, stretch_.size - begin)));
  TITAN_RETURN_IF_ERROR(file_->read(stretch_.begin + begin, static_cast<int64_t>(buffer_.size()), buffer_.data()));
  uint32_t sum = 0;
  TITAN_RETURN_IF_ERROR(sums_->read(stretch_.sums_at + block * static_cast<int64_t>(sizeof sum), sizeof sum,
                                    reinterpret_cast<char*>(&sum)));
  if (storage::crc32c(buffer_.data(), buffer_.size()) != sum) {
    return absl::DataLossError(absl::StrCat(path_, ": damaged between byte ", stretch_.begin + begin, " and byte ",
                                            stretch_.begin + begin + static_cast<int64_t>(buffer_.size()),
                                            " (checksum); titan-data verify lists all damage, make the file again"));
  }
  loaded_ = block;
  return absl::OkStatus();
}

}  // namespace titan::data
