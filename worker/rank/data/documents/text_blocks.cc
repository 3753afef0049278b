#include "worker/rank/data/documents/text_blocks.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/block_files.h"
#include "worker/rank/data/documents/compressed_text.h"

namespace titan::data {
namespace {

constexpr size_t kChunk = 16 * 1024;

}  // namespace

absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset, int64_t end) {
  if (offset == 0) return 0;
  // The byte before a line's start ends the previous line.
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

// Reads backwards until a byte decides.
absl::StatusOr<bool> line_before_is_blank(const std::string& path, int64_t line) {
  std::vector<char> buffer(kChunk);
  for (int64_t end = line - 1; end > 0;) {  // Leaves out the line's own end.
    const int64_t begin = std::max<int64_t>(0, end - static_cast<int64_t>(kChunk));
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data_files::ByteSource> source,
                           data_files::ByteSource::open(path, begin));
    TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(buffer.data(), static_cast<size_t>(end - begin)));
    if (got != static_cast<size_t>(end - begin)) return data_files::no_line_at(path, line);
    const std::string_view bytes(buffer.data(), got);
    const size_t decisive = bytes.find_last_not_of(" \t\r");
    if (decisive != std::string_view::npos) return bytes[decisive] == '\n';
    end = begin;
  }
  return true;
}

namespace {

constexpr size_t kRemoteStreams = 4;

class RemoteBytes final : public storage::ReadableFile {
 public:
  RemoteBytes(std::shared_ptr<data_files::RemoteFiles> remote, std::string path, int64_t size, int64_t read_through)
      : remote_(std::move(remote)), path_(std::move(path)), size_(size), read_through_(read_through) {}

  int64_t size() const override { return size_; }

  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    const std::scoped_lock lock(mutex_);
    TITAN_RETURN_IF_ERROR(go_to(offset));
    const absl::Status read = read_on(streams_.back(), bytes, out);
    if (!read.ok()) streams_.pop_back();
    return read;
  }

 private:
  struct Stream {
    int64_t at = 0;
    std::unique_ptr<data_files::ByteSource> bytes;
  };

  // Makes the stream at `offset` the last one; opens it if needed.
  absl::Status go_to(int64_t offset) {
    auto nearest = streams_.end();
    for (auto stream = streams_.begin(); stream != streams_.end(); ++stream) {
      const bool near = stream->at <= offset && offset - stream->at <= read_through_;
      if (near && (nearest == streams_.end() || nearest->at < stream->at)) nearest = stream;
    }
    if (nearest != streams_.end()) {
      std::rotate(nearest, nearest + 1, streams_.end());
      return pass(streams_.back(), offset);
    }
    if (streams_.size() == kRemoteStreams) streams_.erase(streams_.begin());
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<data_files::ByteSource> opened, remote_->open(path_, offset));
    streams_.push_back({offset, std::move(opened)});
    return absl::OkStatus();
  }

  absl::Status pass(Stream& stream, int64_t offset) {
    std::vector<char> unused(static_cast<size_t>(offset - stream.at));
    const absl::Status passed = read_on(stream, offset - stream.at, unused.data());
    if (!passed.ok()) streams_.pop_back();
    return passed;
  }

  absl::Status read_on(Stream& stream, int64_t bytes, char* out) const {
    while (bytes > 0) {
      TITAN_ASSIGN_OR_RETURN(const size_t got, stream.bytes->read(out, static_cast<size_t>(bytes)));
      if (got == 0) return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", stream.at, " of ", size_));
      stream.at += static_cast<int64_t>(got);
      out += got;
      bytes -= static_cast<int64_t>(got);
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<data_files::RemoteFiles> remote_;
  const std::string path_;
  const int64_t size_, read_through_;
  std::mutex mutex_;
  std::vector<Stream> streams_;
};

}  // namespace

std::unique_ptr<storage::ReadableFile> remote_bytes(std::shared_ptr<data_files::RemoteFiles> remote,
                                                    const std::string& path, int64_t size, int64_t read_through) {
  return std::make_unique<RemoteBytes>(std::move(remote), path, size, read_through);
}

namespace {

class PlainBlocks final : public TextBlocks {
 public:
  PlainBlocks(std::string path, int64_t size, int64_t block_bytes, bool paragraphs)
      : path_(std::move(path)), size_(size), block_bytes_(block_bytes), paragraphs_(paragraphs) {}

  absl::StatusOr<std::optional<Lines>> lines(int64_t block) override {
    const int64_t begin = block * block_bytes_;
    const int64_t end = size_ - begin < block_bytes_ ? size_ : begin + block_bytes_;
    TITAN_ASSIGN_OR_RETURN(const int64_t start, line_start(path_, begin, end));
    if (start >= end) return std::nullopt;
    TITAN_ASSIGN_OR_RETURN(data_files::LineReader reader,
                           data_files::LineReader::open(path_, {.offset = start}, end - start));
    TITAN_ASSIGN_OR_RETURN(const bool on, goes_on(start));
    return Lines{std::move(reader), end, on};
  }

  absl::StatusOr<Lines> lines_from(int64_t block) override {
    TITAN_ASSIGN_OR_RETURN(const int64_t start, line_start(path_, block * block_bytes_));
    TITAN_ASSIGN_OR_RETURN(data_files::LineReader reader, data_files::LineReader::open(path_, {.offset = start}));
    TITAN_ASSIGN_OR_RETURN(const bool on, goes_on(start));
    return Lines{std::move(reader), size_, on};
  }

  absl::StatusOr<int64_t> block_of(int64_t offset) override {
    if (offset > size_) return data_files::no_line_at(path_, offset);
    return offset < size_ ? offset / block_bytes_ : parts_of(size_, block_bytes_);
  }

 private:
  absl::StatusOr<bool> goes_on(int64_t line) const {
    if (line == 0 || !paragraphs_) return false;
    TITAN_ASSIGN_OR_RETURN(const bool empty, line_before_is_blank(path_, line));
    return !empty;
  }

  const std::string path_;
  const int64_t size_, block_bytes_;
  const bool paragraphs_;
};

// The text that starts at byte `at` of piece `piece`.
class PiecesFrom final : public data_files::ByteSource {
 public:
  PiecesFrom(CompressedText* text, int64_t piece, int64_t at) : text_(text), piece_(piece), at_(at) {}

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    for (; piece_ < text_->pieces(); ++piece_, at_ = 0) {
      TITAN_ASSIGN_OR_RETURN(const CompressedText::Piece* piece, text_->piece(piece_));
      const size_t part = std::min(size, piece->text.size() - static_cast<size_t>(at_));
      if (part == 0) continue;
      std::memcpy(buffer, piece->text.data() + at_, part);
      at_ += static_cast<int64_t>(part);
      return part;
    }
    return 0;
  }

 private:
  CompressedText* const text_;
  int64_t piece_, at_;
};

class CompressedBlocks final : public TextBlocks {
 public:
  CompressedBlocks(std::string path, std::unique_ptr<CompressedText> text)
      : path_(std::move(path)), text_(std::move(text)) {}

  absl::StatusOr<std::optional<Lines>> lines(int64_t block) override {
    TITAN_ASSIGN_OR_RETURN(std::optional<Lines> found, first_line(block, block + 1));
    return found.has_value() && found->reader.place().offset < found->end ? std::move(found) : std::nullopt;
  }

  absl::StatusOr<Lines> lines_from(int64_t block) override {
    TITAN_ASSIGN_OR_RETURN(std::optional<Lines> found, first_line(block, text_->pieces()));
    if (found.has_value()) return *std::move(found);
    const int64_t last = text_->pieces() - 1;
    TITAN_ASSIGN_OR_RETURN(const CompressedText::Piece* piece, text_->piece(last));
    return lines_at(last, *piece, piece->text.size(), true);  // The last line is not terminated.
  }

  absl::StatusOr<int64_t> block_of(int64_t offset) override { return text_->piece_of(offset); }

 private:
  // Returns the first line that starts at the beginning of piece `from`, or after a line's end in pieces [from, to).
  absl::StatusOr<std::optional<Lines>> first_line(int64_t from, int64_t to) {
    bool words = false;  // The unfinished line so far is not blank.
    for (int64_t number = from; number < to; ++number) {
      TITAN_ASSIGN_OR_RETURN(const CompressedText::Piece* piece, text_->piece(number));
      if (number == from && !piece->in_line) return lines_at(number, *piece, 0, piece->words);
      if (number == from) words = piece->words;
      const size_t end = piece->text.find('\n');
      words |= !data_files::blank(std::string_view(piece->text).substr(0, end));
      if (end != std::string::npos) return lines_at(number, *piece, end + 1, words);
    }
    return std::nullopt;
  }

  Lines lines_at(int64_t number, const CompressedText::Piece& piece, size_t at, bool goes_on) {
    const auto offset = static_cast<int64_t>(at);
    return {data_files::LineReader::over(path_, {.offset = piece.begin + offset},
                                         std::make_unique<PiecesFrom>(text_.get(), number, offset)),
            piece.end(), goes_on};
  }

  const std::string path_;
  const std::unique_ptr<CompressedText> text_;
};

}  // namespace

std::unique_ptr<TextBlocks> plain_text_blocks(const std::string& path, int64_t size, int64_t block_bytes,
                                              bool paragraphs) {
  return std::make_unique<PlainBlocks>(path, size, block_bytes, paragraphs);
}

absl::StatusOr<std::unique_ptr<TextBlocks>> compressed_text_blocks(const std::string& path, int64_t size,
                                                                   int64_t block_bytes,
                                                                   std::shared_ptr<data_files::RemoteFiles> remote) {
  std::unique_ptr<storage::ReadableFile> file;
  if (remote == nullptr) {
    TITAN_ASSIGN_OR_RETURN(file, storage::posix_files().open(path));
  } else {
    file = remote_bytes(std::move(remote), path, size);
  }
  if (file->size() != size) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", file->size(), " bytes and had ", size,
                                                   " when it was first looked at: the dataset has changed"));
  }
  const CompressedText::Options options{.piece_bytes = block_bytes};
  return std::make_unique<CompressedBlocks>(path, std::make_unique<CompressedText>(path, std::move(file), options));
}

}  // namespace titan::data
