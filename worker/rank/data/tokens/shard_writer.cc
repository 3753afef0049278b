#include "worker/rank/data/tokens/shard_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::data {
namespace {

constexpr size_t kFlushBytes = 1024 * 1024;  // A multiple of kTokenBlock.

template <typename T>
void append(std::string& bytes, const T* values, size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

absl::Status remove_old(storage::Files& files, const std::string& path) {
  const absl::Status removed = files.remove(path);
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

}  // namespace

absl::StatusOr<ShardWriter> ShardWriter::create(storage::Files& files, const std::string& name, uint32_t width,
                                                bool marked) {
  ShardWriter writer(files, name, width, marked);
  for (const char* ending : {kIndexEnding, kTokensEnding}) {
    TITAN_RETURN_IF_ERROR(remove_old(files, absl::StrCat(name, ending)));
  }
  TITAN_ASSIGN_OR_RETURN(writer.tokens_, files.create(absl::StrCat(name, kTokensEnding)));
  return writer;
}

absl::Status ShardWriter::add_document(const std::vector<int32_t>& tokens) {
  if (header_.width == 4) {
    append(buffer_, tokens.data(), tokens.size());
  } else {
    for (const int32_t token : tokens) {
      const auto narrow = static_cast<uint16_t>(token);
      append(buffer_, &narrow, 1);
    }
  }
  header_.tokens += static_cast<int64_t>(tokens.size());
  ++header_.documents;
  begins_.push_back(header_.tokens);
  return buffer_.size() >= kFlushBytes ? flush(/*all=*/false) : absl::OkStatus();
}

// Whole blocks, and at the end what is left.
absl::Status ShardWriter::flush(bool all) {
  const size_t bytes = all ? buffer_.size() : buffer_.size() / kTokenBlock * kTokenBlock;
  for (size_t at = 0; at < bytes; at += kTokenBlock) {
    sums_.push_back(storage::crc32c(buffer_.data() + at, std::min<size_t>(kTokenBlock, bytes - at)));
  }
  TITAN_RETURN_IF_ERROR(tokens_->append(std::string_view(buffer_).substr(0, bytes)));
  buffer_.erase(0, bytes);
  return absl::OkStatus();
}

absl::StatusOr<ShardWriter::Written> ShardWriter::finish() {
  TITAN_RETURN_IF_ERROR(flush(/*all=*/true));
  TITAN_RETURN_IF_ERROR(tokens_->sync());
  TITAN_RETURN_IF_ERROR(tokens_->close());
  header_.sum = header_sum(header_);
  std::string index;
  append(index, &header_, 1);
  append(index, begins_.data(), begins_.size());
  append(index, sums_.data(), sums_.size());
  const auto* begins = reinterpret_cast<const char*>(begins_.data());
  const size_t offset_bytes = begins_.size() * sizeof(begins_[0]);
  for (size_t at = 0; at < offset_bytes; at += kOffsetBlock) {
    const uint32_t sum = storage::crc32c(begins + at, std::min<size_t>(kOffsetBlock, offset_bytes - at));
    append(index, &sum, 1);
  }
  TITAN_RETURN_IF_ERROR(storage::atomic_write(*files_, absl::StrCat(name_, kIndexEnding), index));
  return Written{header_.tokens, header_.documents, storage::crc32c(index.data(), index.size())};
}

}  // namespace titan::data
