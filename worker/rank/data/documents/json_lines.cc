// JSON lines: a line is a document, {"text": "..."}; blank lines are none.
#include "worker/rank/data/documents/json_lines.h"

#include <utility>

#include "common/base/status/status.h"
#include "common/io/data_files/json_row.h"
#include "common/io/data_files/line_reader.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

DocumentText parse_json_line(std::string_view line, const std::string& key) {
  data_files::RowText row = data_files::text_of_row(line, key);
  return {std::move(row.text), std::move(row.problem)};
}

namespace {

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

}  // namespace titan::data
