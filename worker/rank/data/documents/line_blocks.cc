// Blocks of text with about as many bytes each: JSON lines or paragraphs. A file that is one document is one block.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/line_reader.h"
#include "worker/rank/data/documents/block_files.h"
#include "worker/rank/data/documents/compressed_text.h"
#include "worker/rank/data/documents/text_blocks.h"
#include "worker/rank/data/documents/text_file.h"

namespace titan::data {
namespace {

constexpr size_t kOpenTexts = 8;  // Files open at once, because the rows of many ranks lie in several files.

class LineBlocks : public BlockFiles {
 public:
  LineBlocks(std::vector<std::string> files, FileKind kind, std::vector<int64_t> bytes, const Sizes& sizes)
      : files_(std::move(files)), kind_(std::move(kind)), bytes_(std::move(bytes)), sizes_(sizes) {}

  int64_t blocks(int64_t file) const override {
    const int64_t bytes = bytes_[file], block = block_bytes(file);
    return data_files::is_compressed(files_[file]) ? CompressedText::pieces_of(bytes, block) : parts_of(bytes, block);
  }

  absl::StatusOr<int64_t> at(int64_t, const data_files::FilePlace& place) const override { return place.offset; }
  data_files::FilePlace place(int64_t, int64_t at, int64_t line) const override { return {at, line}; }
  absl::StatusOr<int64_t> block_of(int64_t file, int64_t at) override {
    TITAN_ASSIGN_OR_RETURN(TextBlocks * text, open(file));
    return text->block_of(at);
  }
  std::string name(int64_t file, int64_t, int64_t line) const override {
    return absl::StrCat(files_[file], ":", line + 1);
  }

 protected:
  absl::StatusOr<TextBlocks*> open(int64_t file) {
    const auto there = std::find_if(open_.begin(), open_.end(), [&](const Open& one) { return one.file == file; });
    if (there != open_.end()) {
      std::rotate(there, there + 1, open_.end());  // The last is the most recently used.
      return open_.back().text.get();
    }
    const std::string& path = files_[file];
    Open opened{file, nullptr};
    if (data_files::is_compressed(path)) {
      TITAN_ASSIGN_OR_RETURN(opened.text, compressed_text_blocks(path, bytes_[file], block_bytes(file), kind_.remote));
    } else {
      opened.text =
          plain_text_blocks(path, bytes_[file], block_bytes(file), kind_.format == data_files::DatasetFormat::kText);
    }
    if (open_.size() == kOpenTexts) open_.erase(open_.begin());
    open_.push_back(std::move(opened));
    return open_.back().text.get();
  }

  const std::vector<std::string> files_;
  const FileKind kind_;
  const std::vector<int64_t> bytes_;

 private:
  struct Open {
    int64_t file = 0;
    std::unique_ptr<TextBlocks> text;
  };
  int64_t block_bytes(int64_t file) const {
    return data_files::is_compressed(files_[file]) ? sizes_.compressed_bytes : sizes_.text_bytes;
  }

  const Sizes sizes_;
  std::vector<Open> open_;
};

class JsonBlocks final : public LineBlocks {
 public:
  using LineBlocks::LineBlocks;

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t block) override {
    BlockTexts texts;
    TITAN_ASSIGN_OR_RETURN(TextBlocks * text, open(file));
    TITAN_ASSIGN_OR_RETURN(std::optional<TextBlocks::Lines> lines, text->lines(block));
    std::string_view line;
    while (lines.has_value() && lines->reader.place().offset < lines->end) {
      const data_files::FilePlace place = lines->reader.place();
      TITAN_ASSIGN_OR_RETURN(const bool more, lines->reader.next(line));
      if (!more) break;
      texts.begins.push_back(place.offset);
      if (!data_files::blank(line))
        texts.documents.push_back({place.offset, place.line, parse_json_line(line, kind_.text_key)});
    }
    return texts;
  }

  absl::StatusOr<data_files::FilePlace> next_begin(int64_t file, int64_t block) override {
    TITAN_ASSIGN_OR_RETURN(TextBlocks * text, open(file));
    TITAN_ASSIGN_OR_RETURN(const TextBlocks::Lines lines, text->lines_from(block));
    return lines.reader.place();
  }
};

class ParagraphBlocks final : public LineBlocks {
 public:
  using LineBlocks::LineBlocks;

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t block) override {
    BlockTexts texts;
    TITAN_ASSIGN_OR_RETURN(TextBlocks * text, open(file));
    TITAN_ASSIGN_OR_RETURN(std::optional<TextBlocks::Lines> lines, text->lines(block));
    if (!lines.has_value()) return texts;
    bool before = lines->goes_on;             // Inside a paragraph of an earlier block.
    std::optional<BlockTexts::Document> own;  // The open paragraph of this block.
    std::string_view line;
    while (lines->reader.place().offset < lines->end || own.has_value()) {
      const data_files::FilePlace place = lines->reader.place();
      TITAN_ASSIGN_OR_RETURN(const bool more, lines->reader.next(line));
      if (!more) break;
      if (place.offset < lines->end) texts.begins.push_back(place.offset);
      if (data_files::blank(line)) {
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

  absl::StatusOr<data_files::FilePlace> next_begin(int64_t file, int64_t block) override {
    TITAN_ASSIGN_OR_RETURN(TextBlocks * text, open(file));
    TITAN_ASSIGN_OR_RETURN(TextBlocks::Lines lines, text->lines_from(block));
    std::string_view line;
    for (bool before = lines.goes_on; before;) {
      TITAN_ASSIGN_OR_RETURN(const bool more, lines.reader.next(line));
      before = more && !data_files::blank(line);
    }
    return lines.reader.place();
  }

 private:
  static void close(std::optional<BlockTexts::Document>& paragraph, BlockTexts& texts) {
    if (!paragraph.has_value()) return;
    paragraph->text = paragraph_text(std::move(paragraph->text.text));
    texts.documents.push_back(*std::exchange(paragraph, std::nullopt));
  }
};

class WholeFiles final : public LineBlocks {
 public:
  using LineBlocks::LineBlocks;

  int64_t blocks(int64_t file) const override { return bytes_[file] > 0 ? 1 : 0; }

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t) override {
    BlockTexts texts{.begins = {0}};
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> whole, DocumentFile::open(files_[file], kind_, {}));
    TITAN_ASSIGN_OR_RETURN(const bool found, whole->next());
    if (!found) return texts;
    TITAN_ASSIGN_OR_RETURN(DocumentText text, whole->text());
    texts.documents.push_back({0, 0, std::move(text)});
    return texts;
  }
  absl::StatusOr<data_files::FilePlace> next_begin(int64_t, int64_t) override { return data_files::FilePlace{}; }
  // For a place after the document, the file must still have that size.
  absl::StatusOr<int64_t> block_of(int64_t file, int64_t at) override {
    if (at == 0) return 0;
    TITAN_RETURN_IF_ERROR(DocumentFile::open(files_[file], kind_, {at, 1}).status());
    return blocks(file);
  }
  std::string name(int64_t file, int64_t, int64_t) const override { return files_[file]; }
};

absl::StatusOr<int64_t> bytes_of(const std::string& file, const FileKind& kind) {
  if (kind.remote != nullptr) {
    const std::optional<int64_t> size = kind.remote->size(file);
    return size.has_value() ? absl::StatusOr<int64_t>(*size)
                            : absl::UnimplementedError(absl::StrCat(file, ": its size is not known"));
  }
  struct stat facts {};
  if (::stat(file.c_str(), &facts) != 0) return errno_status(errno, file);
  return facts.st_size;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockFiles>> BlockFiles::of_lines(const std::vector<std::string>& files,
                                                                 const FileKind& kind, const Sizes& sizes) {
  std::vector<int64_t> bytes;
  for (const std::string& file : files) {
    TITAN_ASSIGN_OR_RETURN(bytes.emplace_back(), bytes_of(file, kind));
  }
  if (kind.format != data_files::DatasetFormat::kText)
    return std::make_unique<JsonBlocks>(files, kind, std::move(bytes), sizes);
  if (kind.blank_lines) return std::make_unique<ParagraphBlocks>(files, kind, std::move(bytes), sizes);
  return std::make_unique<WholeFiles>(files, kind, std::move(bytes), sizes);
}

}  // namespace titan::data
