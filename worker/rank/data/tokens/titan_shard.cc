#include "worker/rank/data/tokens/titan_shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

uint32_t header_sum(const ShardHeader& header) { return storage::crc32c(&header, offsetof(ShardHeader, sum)); }

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
  for (const char* ending : {kIndexSuffix, kTokensSuffix}) {
    TITAN_RETURN_IF_ERROR(remove_old(files, absl::StrCat(name, ending)));
  }
  TITAN_ASSIGN_OR_RETURN(writer.tokens_, files.create(absl::StrCat(name, kTokensSuffix)));
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

// Writes whole blocks; with `all` the rest, too.
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
  TITAN_RETURN_IF_ERROR(storage::atomic_write(*files_, absl::StrCat(name_, kIndexSuffix), index));
  return Written{header_.tokens, header_.documents, storage::crc32c(index.data(), index.size())};
}

namespace {

constexpr int64_t kMaxDocuments = int64_t{1} << 40, kMaxTokens = int64_t{1} << 48;

absl::Status unfit(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why, "; make the index again with titan-data tokenize"));
}

// Reads a shard of Titan's token index.
class TitanShard final : public TokenShard {
 public:
  TitanShard(std::string path, const ShardHeader& header, CheckedFile tokens, CheckedFile offsets)
      : path_(std::move(path)), header_(header), tokens_(std::move(tokens)), offsets_(std::move(offsets)) {}

  int64_t tokens() const override { return header_.tokens; }
  int64_t documents() const override { return header_.documents; }
  bool marked() const override { return is_marked(header_); }

  absl::StatusOr<int64_t> document_begin(int64_t document) override {
    int64_t begin = 0;
    TITAN_RETURN_IF_ERROR(offsets_.read(document * 8, sizeof begin, reinterpret_cast<char*>(&begin)));
    if (begin < 0 || begin > header_.tokens) {
      return unfit(path_, absl::StrCat("document ", document, " begins at token ", begin));
    }
    return begin;
  }

  absl::Status read(int64_t begin, int64_t count, int32_t* out) override {
    const auto width = static_cast<int64_t>(header_.width);
    if (width == 4) return tokens_.read(begin * width, count * width, reinterpret_cast<char*>(out));
    narrow_.resize(static_cast<size_t>(count));
    TITAN_RETURN_IF_ERROR(tokens_.read(begin * width, count * width, reinterpret_cast<char*>(narrow_.data())));
    std::copy(narrow_.begin(), narrow_.end(), out);
    return absl::OkStatus();
  }

  absl::Status verify() override {
    int64_t before = 0;
    for (int64_t document = 0; document <= header_.documents; ++document) {
      TITAN_ASSIGN_OR_RETURN(const int64_t begin, document_begin(document));
      const bool right = document == 0 ? begin == 0 : begin >= before;
      if (!right) return unfit(path_, absl::StrCat("document ", document, " begins before the previous one"));
      before = begin;
    }
    if (before != header_.tokens) return unfit(path_, "its last document does not end at its last token");
    std::vector<char> block(kTokenBlock);
    for (int64_t at = 0; at < tokens_.size(); at += kTokenBlock) {
      TITAN_RETURN_IF_ERROR(tokens_.read(at, std::min(kTokenBlock, tokens_.size() - at), block.data()));
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const ShardHeader header_;
  CheckedFile tokens_, offsets_;
  std::vector<uint16_t> narrow_;
};

absl::StatusOr<ShardHeader> read_header(const std::string& path, storage::ReadableFile& file) {
  ShardHeader header;
  if (file.size() < static_cast<int64_t>(sizeof header)) return unfit(path, "is cut short");
  TITAN_RETURN_IF_ERROR(file.read(0, sizeof header, reinterpret_cast<char*>(&header)));
  if (header.magic != ShardHeader().magic) return unfit(path, "is not an index of a token shard");
  if (header.sum != header_sum(header)) return unfit(path, "damaged in its first 40 bytes (checksum)");
  if (header.version != 1 && header.version != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has version ", header.version, " of the format, this Titan reads versions 1 and 2"));
  }
  const bool right = (header.width == 4 || (header.width == 2 && !is_marked(header))) && header.tokens >= 0 &&
                     header.tokens <= kMaxTokens && header.documents >= 0 && header.documents <= kMaxDocuments;
  if (!right) return unfit(path, "has an invalid header");
  return header;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenShard>> open_titan_shard(const std::string& path) {
  const std::string index_path = absl::StrCat(absl::StripSuffix(path, kTokensSuffix), kIndexSuffix);
  storage::Files& files = storage::posix_files();
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> index, files.open(index_path));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> tokens, files.open(path));
  TITAN_ASSIGN_OR_RETURN(const ShardHeader header, read_header(index_path, *index));
  const ShardLayout layout(header);
  if (index->size() != layout.size) {
    return unfit(index_path, absl::StrCat("has ", index->size(), " bytes and needs ", layout.size));
  }
  if (tokens->size() != layout.token_bytes) {
    return unfit(path, absl::StrCat("has ", tokens->size(), " bytes and needs ", layout.token_bytes));
  }
  CheckedFile checked_tokens(path, tokens, index, {0, layout.token_bytes, kTokenBlock, layout.token_sums});
  CheckedFile checked_offsets(index_path, index, index,
                              {sizeof header, layout.offset_bytes, kOffsetBlock, layout.offset_sums});
  return std::make_unique<TitanShard>(index_path, header, std::move(checked_tokens), std::move(checked_offsets));
}

}  // namespace titan::data
