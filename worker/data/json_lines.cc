// JSON lines: a line is a document, {"text": "..."}; blank lines are none.
#include "worker/data/json_lines.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/data/document_file.h"
#include "worker/data/line_reader.h"

namespace titan::data {

namespace {

// A conversation is told from a row that lacks its text.
std::string without_text(const nlohmann::json& record, const std::string& key) {
  const bool messages = record.contains("messages") && record["messages"].is_array();
  return absl::StrCat("no \"", key, "\"",
                      messages ? " (there are \"messages\": a job reads them with dataloader.messages_key)" : "");
}

}  // namespace

DocumentText parse_json_line(std::string_view line, const std::string& key) {
  try {
    nlohmann::json record = nlohmann::json::parse(line.begin(), line.end());
    if (!record.is_object()) return {"", "not a JSON object"};
    const auto text = record.find(key);
    if (text == record.end()) return {"", without_text(record, key)};
    if (!text->is_string()) return {"", absl::StrCat("\"", key, "\" is not a string")};
    return {std::move(text->get_ref<std::string&>()), ""};
  } catch (const nlohmann::json::exception& error) {
    // Not the library's sentence: it quotes the line, which may be megabytes or not UTF-8.
    const bool encoding = std::strstr(error.what(), "UTF-8") != nullptr;
    return {"", encoding ? "not JSON in UTF-8" : "not JSON"};
  }
}

namespace {

class JsonLines final : public DocumentFile {
 public:
  JsonLines(LineReader lines, const FileKind& kind) : lines_(std::move(lines)), key_(kind.text_key), chat_(kind.chat) {}

  absl::StatusOr<bool> next() override {
    do {
      start_ = lines_.place();
      TITAN_ASSIGN_OR_RETURN(const bool more, lines_.next(line_));
      if (!more) return false;
    } while (blank(line_));
    return true;
  }
  FilePlace start() const override { return start_; }
  FilePlace place() const override { return lines_.place(); }
  absl::StatusOr<DocumentText> text() override {
    return chat_ == nullptr ? parse_json_line(line_, key_) : conversation_text(*chat_, line_);
  }
  std::string name() const override { return lines_.name(); }

 private:
  LineReader lines_;
  const std::string key_;
  const std::shared_ptr<const Chat> chat_;
  FilePlace start_;
  std::string_view line_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentFile>> open_json_lines(const std::string& path, const FileKind& kind,
                                                              const FilePlace& place) {
  TITAN_ASSIGN_OR_RETURN(LineReader lines, LineReader::open(path, place, kind));
  return std::make_unique<JsonLines>(std::move(lines), kind);
}

}  // namespace titan::data
