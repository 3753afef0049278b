#include "worker/rank/data/documents/text_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/json_row.h"
#include "common/io/data_files/line_reader.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {

DocumentText parse_json_line(std::string_view line, const std::string& key) {
  data_files::RowText row = data_files::text_of_row(line, key);
  return {std::move(row.text), std::move(row.problem)};
}

namespace {

// JSON lines: each line is a document, {"text": "..."}; blank lines are skipped.
class JsonLines final : public DocumentFile {
 public:
  JsonLines(data_files::LineReader lines, const FileKind& kind)
      : lines_(std::move(lines)), key_(kind.text_key), chat_(kind.chat) {}

  absl::StatusOr<bool> next() override {
    do {
      start_ = lines_.place();
      TITAN_ASSIGN_OR_RETURN(const bool more, lines_.next(line_));
      if (!more) return false;
    } while (data_files::blank(line_));
    return true;
  }
  data_files::FilePlace start() const override { return start_; }
  data_files::FilePlace place() const override { return lines_.place(); }
  absl::StatusOr<DocumentText> text() override {
    return chat_ == nullptr ? parse_json_line(line_, key_) : conversation_text(*chat_, line_);
  }
  std::string name() const override { return lines_.name(); }

 private:
  data_files::LineReader lines_;
  const std::string key_;
  const std::shared_ptr<const Chat> chat_;
  data_files::FilePlace start_;
  std::string_view line_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentFile>> open_json_lines(const std::string& path, const FileKind& kind,
                                                              const data_files::FilePlace& place) {
  TITAN_ASSIGN_OR_RETURN(data_files::LineReader lines,
                         data_files::LineReader::open(path, place, kind.read_ahead, kind.remote.get()));
  return std::make_unique<JsonLines>(std::move(lines), kind);
}

namespace {

DocumentText checked(std::string text) {
  if (!is_utf8(text)) return {"", "not UTF-8"};
  return {std::move(text), ""};
}

// Plain text in which each run of lines that are not blank is a document.
class Paragraphs final : public DocumentFile {
 public:
  explicit Paragraphs(data_files::LineReader lines) : lines_(std::move(lines)) {}

  absl::StatusOr<bool> next() override {
    text_.clear();
    std::string_view line;
    while (true) {
      const data_files::FilePlace before = lines_.place();
      TITAN_ASSIGN_OR_RETURN(const bool more, lines_.next(line));
      if (!more) break;
      if (!data_files::blank(line)) {
        if (text_.empty()) start_ = before, name_ = lines_.name();
        text_ += line;
      } else if (!text_.empty()) {
        break;
      }
    }
    return !text_.empty();
  }
  data_files::FilePlace start() const override { return start_; }
  data_files::FilePlace place() const override { return lines_.place(); }
  absl::StatusOr<DocumentText> text() override { return paragraph_text(std::exchange(text_, {})); }
  std::string name() const override { return name_; }

 private:
  data_files::LineReader lines_;
  data_files::FilePlace start_;
  std::string name_, text_;
};

absl::StatusOr<std::string> read_whole(const std::string& path, data_files::RemoteFiles* remote) {
  constexpr size_t kChunk = 1024 * 1024;
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data_files::ByteSource> source,
                         data_files::ByteSource::open(path, 0, remote));
  std::string text;
  while (true) {
    const size_t before = text.size();
    text.resize(before + kChunk);
    absl::StatusOr<size_t> got = source->read(text.data() + before, kChunk);
    text.resize(before + (got.ok() ? *got : 0));
    if (!got.ok()) return got.status();
    if (*got == 0) return text;
  }
}

// Plain text that is one document, blank lines included.
class WholeFile final : public DocumentFile {
 public:
  WholeFile(std::string path, std::shared_ptr<data_files::RemoteFiles> remote, bool read)
      : path_(std::move(path)), remote_(std::move(remote)), read_(read) {}

  // Checks a position after the document: the file must still have that size.
  absl::Status expect(int64_t size) {
    TITAN_ASSIGN_OR_RETURN(const std::string text, read_whole(path_, remote_.get()));
    size_ = static_cast<int64_t>(text.size());
    if (size_ == size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has ", size_, " bytes and had ", size,
                                                   " when the checkpoint was saved: the dataset has changed"));
  }

  absl::StatusOr<bool> next() override {
    if (std::exchange(read_, true)) return false;
    TITAN_ASSIGN_OR_RETURN(text_, read_whole(path_, remote_.get()));
    size_ = static_cast<int64_t>(text_.size());
    return !data_files::blank(text_);
  }
  data_files::FilePlace start() const override { return {}; }
  data_files::FilePlace place() const override {
    return read_ ? data_files::FilePlace{size_, 1} : data_files::FilePlace{};
  }
  absl::StatusOr<DocumentText> text() override { return checked(std::exchange(text_, {})); }
  std::string name() const override { return path_; }

 private:
  const std::string path_;
  const std::shared_ptr<data_files::RemoteFiles> remote_;
  bool read_;
  int64_t size_ = 0;
  std::string text_;
};

}  // namespace

// Drops the end of the last line.
DocumentText paragraph_text(std::string lines) {
  if (!lines.empty() && lines.back() == '\n') lines.pop_back();
  if (!lines.empty() && lines.back() == '\r') lines.pop_back();
  return checked(std::move(lines));
}

absl::StatusOr<std::unique_ptr<DocumentFile>> open_text(const std::string& path, const FileKind& kind,
                                                        const data_files::FilePlace& place) {
  if (kind.blank_lines) {
    TITAN_ASSIGN_OR_RETURN(data_files::LineReader lines,
                           data_files::LineReader::open(path, place, kind.read_ahead, kind.remote.get()));
    return std::make_unique<Paragraphs>(std::move(lines));
  }
  auto file = std::make_unique<WholeFile>(path, kind.remote, place.offset > 0);
  if (place.offset > 0) TITAN_RETURN_IF_ERROR(file->expect(place.offset));
  return file;
}

}  // namespace titan::data
