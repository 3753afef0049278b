// Blocks of text: about as many bytes each, of JSON lines or of paragraphs; where a file is a document, all of it.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/bad_lines.h"
#include "worker/data/block_files.h"
#include "worker/data/json_lines.h"
#include "worker/data/line_reader.h"
#include "worker/data/line_start.h"
#include "worker/data/text_file.h"

namespace titan::data {
namespace {

class LineBlocks : public BlockFiles {
 public:
  LineBlocks(std::vector<std::string> files, FileKind kind, std::vector<int64_t> sizes, int64_t block_bytes)
      : files_(std::move(files)), kind_(std::move(kind)), sizes_(std::move(sizes)), block_bytes_(block_bytes) {}

  int64_t size(int64_t file) const override { return sizes_[file]; }
  int64_t block_size() const override { return block_bytes_; }

  absl::StatusOr<int64_t> at(int64_t file, const FilePlace& place) const override {
    if (place.offset > sizes_[file]) return no_line_at(files_[file], place.offset);
    return place.offset;
  }
  FilePlace place(int64_t, int64_t at, int64_t line) const override { return {at, line}; }
  std::string name(int64_t file, int64_t, int64_t line) const override {
    return absl::StrCat(files_[file], ":", line + 1);
  }

 protected:
  // From the first line that starts in [begin, end); nothing when none does.
  absl::StatusOr<std::optional<LineReader>> lines(int64_t file, int64_t begin, int64_t end) const {
    TITAN_ASSIGN_OR_RETURN(const int64_t start, line_start(files_[file], begin, end));
    if (start >= std::min(end, sizes_[file])) return std::nullopt;
    TITAN_ASSIGN_OR_RETURN(LineReader reader, LineReader::open(files_[file], {.offset = start}, end - start));
    return reader;
  }

  const std::vector<std::string> files_;
  const FileKind kind_;
  const std::vector<int64_t> sizes_;
  const int64_t block_bytes_;
};

class JsonBlocks final : public LineBlocks {
 public:
  using LineBlocks::LineBlocks;

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t begin, int64_t end) override {
    BlockTexts texts;
    TITAN_ASSIGN_OR_RETURN(std::optional<LineReader> reader, lines(file, begin, end));
    std::string_view line;
    while (reader.has_value() && reader->place().offset < end) {
      const FilePlace place = reader->place();
      TITAN_ASSIGN_OR_RETURN(const bool more, reader->next(line));
      if (!more) break;
      texts.begins.push_back(place.offset);
      if (!blank(line)) texts.documents.push_back({place.offset, place.line, parse_json_line(line, kind_.text_key)});
    }
    return texts;
  }

  absl::StatusOr<FilePlace> next_begin(int64_t file, int64_t begin) override {
    TITAN_ASSIGN_OR_RETURN(const int64_t start, line_start(files_[file], begin));
    return FilePlace{start, 0};
  }
};

class ParagraphBlocks final : public LineBlocks {
 public:
  using LineBlocks::LineBlocks;

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t begin, int64_t end) override {
    BlockTexts texts;
    TITAN_ASSIGN_OR_RETURN(std::optional<LineReader> reader, lines(file, begin, end));
    if (!reader.has_value()) return texts;
    TITAN_ASSIGN_OR_RETURN(bool before, goes_on(file, reader->place().offset));  // In a paragraph of a block before,
    std::optional<BlockTexts::Document> own;                                     // or in one of this block.
    std::string_view line;
    while (reader->place().offset < end || own.has_value()) {
      const FilePlace place = reader->place();
      TITAN_ASSIGN_OR_RETURN(const bool more, reader->next(line));
      if (!more) break;
      if (place.offset < end) texts.begins.push_back(place.offset);
      if (blank(line)) {
        close(own, texts);
        before = false;
      } else if (!before) {
        if (!own.has_value()) own = {place.offset, place.line, {}};
        own->text.text += line;
      }
    }
    close(own, texts);
    return texts;
  }

  absl::StatusOr<FilePlace> next_begin(int64_t file, int64_t begin) override {
    TITAN_ASSIGN_OR_RETURN(const int64_t start, line_start(files_[file], begin));
    TITAN_ASSIGN_OR_RETURN(LineReader reader, LineReader::open(files_[file], {.offset = start}));
    TITAN_ASSIGN_OR_RETURN(bool before, goes_on(file, start));
    std::string_view line;
    while (before) {
      TITAN_ASSIGN_OR_RETURN(const bool more, reader.next(line));
      before = more && !blank(line);
    }
    return reader.place();
  }

 private:
  // Whether the line before that one belongs to a paragraph.
  absl::StatusOr<bool> goes_on(int64_t file, int64_t line) const {
    if (line == 0) return false;
    TITAN_ASSIGN_OR_RETURN(const bool empty, line_before_is_blank(files_[file], line));
    return !empty;
  }

  static void close(std::optional<BlockTexts::Document>& paragraph, BlockTexts& texts) {
    if (!paragraph.has_value()) return;
    paragraph->text = paragraph_text(std::move(paragraph->text.text));
    texts.documents.push_back(*std::exchange(paragraph, std::nullopt));
  }
};

class WholeFiles final : public LineBlocks {
 public:
  using LineBlocks::LineBlocks;

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t, int64_t) override {
    BlockTexts texts{.begins = {0}};
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> whole, DocumentFile::open(files_[file], kind_, {}));
    TITAN_ASSIGN_OR_RETURN(const bool found, whole->next());
    if (!found) return texts;
    TITAN_ASSIGN_OR_RETURN(DocumentText text, whole->text());
    texts.documents.push_back({0, 0, std::move(text)});
    return texts;
  }
  absl::StatusOr<FilePlace> next_begin(int64_t, int64_t) override { return FilePlace{}; }
  std::string name(int64_t file, int64_t, int64_t) const override { return files_[file]; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockFiles>> BlockFiles::of_lines(const std::vector<std::string>& files,
                                                                 const FileKind& kind, int64_t block_bytes) {
  std::vector<int64_t> sizes;
  for (const std::string& file : files) {
    struct stat facts {};
    if (::stat(file.c_str(), &facts) != 0) return errno_status(errno, file);
    sizes.push_back(facts.st_size);
  }
  if (kind.format != Format::kText) return std::make_unique<JsonBlocks>(files, kind, std::move(sizes), block_bytes);
  if (kind.blank_lines) return std::make_unique<ParagraphBlocks>(files, kind, std::move(sizes), block_bytes);
  return std::make_unique<WholeFiles>(files, kind, std::move(sizes), std::numeric_limits<int64_t>::max());
}

}  // namespace titan::data
