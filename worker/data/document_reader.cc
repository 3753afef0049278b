#include "worker/data/document_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "nlohmann/json.hpp"

namespace titan::data {
namespace {

constexpr size_t kReadChunk = 1024 * 1024;

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// The text of a line, or why there is none.
struct Parsed {
  std::string text;
  std::string problem;
};

Parsed parse(std::string_view line, const std::string& key) {
  try {
    nlohmann::json record = nlohmann::json::parse(line.begin(), line.end());
    if (!record.is_object()) return {"", "not a JSON object"};
    const auto text = record.find(key);
    if (text == record.end()) return {"", absl::StrCat("no \"", key, "\"")};
    if (!text->is_string()) return {"", absl::StrCat("\"", key, "\" is not a string")};
    return {std::move(text->get_ref<std::string&>()), ""};
  } catch (const nlohmann::json::exception& error) {
    // Not the library's sentence: it quotes the line, which may be megabytes or not UTF-8.
    const bool encoding = std::strstr(error.what(), "UTF-8") != nullptr;
    return {"", encoding ? "not JSON in UTF-8" : "not JSON"};
  }
}

}  // namespace

absl::StatusOr<std::optional<Document>> DocumentReader::next() {
  const DocumentShare& share = options_.share;
  while (true) {
    if (share.end.has_value() && position_.document >= *share.end) return std::nullopt;
    DocumentPosition start = position_;
    std::string_view line;
    TITAN_ASSIGN_OR_RETURN(const bool found, next_line(line));
    if (!found) return std::nullopt;
    start.file = position_.file;  // The line may be the first of the next file.
    start.offset = position_.offset - static_cast<int64_t>(line.size());
    start.line = position_.line - 1;
    if (blank(line)) continue;
    const int64_t number = position_.document++;
    if (number < share.begin || number % share.step != share.remainder) continue;
    Parsed parsed = parse(line, options_.text_key);
    if (parsed.problem.empty()) return Document{std::move(parsed.text), start};
    TITAN_RETURN_IF_ERROR(note_bad_line(parsed.problem));
  }
}

std::string DocumentReader::place() const { return absl::StrCat(options_.files[position_.file], ":", position_.line); }

absl::Status DocumentReader::note_bad_line(const std::string& why) {
  ++bad_lines_;
  const std::string warning = absl::StrCat(place(), ": ", why);
  if (bad_lines_ > options_.max_bad_lines) {
    return absl::InvalidArgumentError(absl::StrCat(
        warning, "; that is malformed line ", bad_lines_, ", more than training.dataloader.max_bad_lines = ",
        options_.max_bad_lines, " (lines have to be JSON objects with a string \"", options_.text_key, "\")"));
  }
  if (!read_before_) warnings_.push_back(absl::StrCat(warning, ", skipped"));
  return absl::OkStatus();
}

std::vector<std::string> DocumentReader::take_warnings() { return std::exchange(warnings_, {}); }

// More bytes behind buffer_; false at the end of the file.
absl::StatusOr<bool> DocumentReader::fill() {
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadChunk);
  absl::StatusOr<size_t> got = source_->read(buffer_.data() + before, kReadChunk);
  buffer_.resize(before + (got.ok() ? *got : 0));
  if (!got.ok()) return got.status();
  return *got > 0;
}

// The next line with its end ("\n"; the last of a file may lack it), valid until the next call. False after the last
// file.
absl::StatusOr<bool> DocumentReader::next_line(std::string_view& line) {
  while (position_.file < static_cast<int64_t>(options_.files.size())) {
    if (source_ == nullptr) {
      TITAN_ASSIGN_OR_RETURN(source_, ByteSource::open(options_.files[position_.file], position_.offset));
      buffer_.clear();
      consumed_ = 0;
    }
    size_t searched = consumed_;
    size_t end = buffer_.find('\n', searched);
    while (end == std::string::npos) {
      const size_t unread = buffer_.size() - consumed_;
      TITAN_ASSIGN_OR_RETURN(const bool more, fill());
      if (!more) break;
      end = buffer_.find('\n', unread);
    }
    if (end == std::string::npos && consumed_ == buffer_.size()) {  // End of the file.
      source_ = nullptr;
      ++position_.file;
      position_.offset = position_.line = 0;
      continue;
    }
    const size_t length = (end == std::string::npos ? buffer_.size() : end + 1) - consumed_;
    line = std::string_view(buffer_).substr(consumed_, length);
    consumed_ += length;
    position_.offset += static_cast<int64_t>(length);
    ++position_.line;
    return true;
  }
  return false;
}

absl::Status DocumentReader::seek(const DocumentPosition& position, int64_t bad_lines) {
  if (position.file < 0 || position.file > static_cast<int64_t>(options_.files.size()) || position.offset < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the saved position is in file ", position.file,
                                                   " of the dataset, which has ",
                                                   counted(options_.files.size(), "file")));
  }
  source_ = nullptr;
  position_ = position;
  bad_lines_ = bad_lines;
  if (position.offset == 0 || position.file == static_cast<int64_t>(options_.files.size())) return absl::OkStatus();
  // The byte before a line's start ends the line before; anything else is another file than the saved one.
  TITAN_ASSIGN_OR_RETURN(source_, ByteSource::open(options_.files[position.file], position.offset - 1));
  buffer_.clear();
  consumed_ = 0;
  TITAN_RETURN_IF_ERROR(fill().status());
  if (buffer_.empty() || (buffer_[0] != '\n' && buffer_.size() > 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.files[position.file], ": no line starts at byte ", position.offset,
                     ", where the checkpoint's data position is: the dataset has changed"));
  }
  consumed_ = 1;
  return absl::OkStatus();
}

void DocumentReader::rewind() {
  source_ = nullptr;
  position_ = {};
  bad_lines_ = 0;
  read_before_ = true;
}

absl::StatusOr<int64_t> count_documents(const std::vector<std::string>& files) {
  int64_t count = 0;
  std::string buffer(kReadChunk, '\0');
  for (const std::string& file : files) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::open(file, 0));
    bool has_text = false;  // On the current line.
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(buffer.data(), buffer.size()));
      if (got == 0) break;
      std::string_view rest(buffer.data(), got);
      while (!rest.empty()) {
        const size_t end = rest.find('\n');
        has_text = has_text || !blank(rest.substr(0, end));
        if (end == std::string_view::npos) break;
        count += has_text ? 1 : 0;
        has_text = false;
        rest.remove_prefix(end + 1);
      }
    }
    count += has_text ? 1 : 0;
  }
  return count;
}

}  // namespace titan::data
