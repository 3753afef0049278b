#include "common/io/data_files/first_rows.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/conversation.h"
#include "common/io/data_files/json_row.h"
#include "common/io/data_files/line_reader.h"
#include "common/io/data_files/signature.h"

namespace titan::data_files {
namespace {

constexpr int64_t kMostBytes = 16 << 20, kMostRows = 10'000;
constexpr size_t kMostReasons = 3;

// The first bytes of a file; `left` is what may still be read of all files together.
class FirstBytes final : public ByteSource {
 public:
  FirstBytes(std::unique_ptr<ByteSource> bytes, int64_t& left) : bytes_(std::move(bytes)), left_(left) {}

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    size = std::min(size, static_cast<size_t>(left_));
    if (size == 0) return 0;
    TITAN_ASSIGN_OR_RETURN(const size_t got, bytes_->read(buffer, size));
    left_ -= static_cast<int64_t>(got);
    return got;
  }

 private:
  const std::unique_ptr<ByteSource> bytes_;
  int64_t& left_;
};

// Nothing for a row with a document, or with an empty text, which is none and no fault.
std::string problem_of(std::string_view row, const RowRules& rules, bool& has_document) {
  if (rules.messages_key.empty()) {
    const RowText text = text_of_row(row, rules.text_key, rules.text_key_option);
    has_document |= text.problem.empty() && !text.text.empty();
    return text.problem;
  }
  const absl::StatusOr<Conversation> conversation = parse_conversation(row, rules.messages_key);
  absl::Status status = conversation.status();
  if (status.ok() && !rules.train_on_all) status = check_answered(*conversation);
  has_document |= status.ok();
  return std::string(status.message());
}

std::string excerpt(std::string_view line) {
  constexpr size_t kLongest = 60;
  return text::shortened(text::printable(line.substr(0, line.find_last_not_of("\r\n") + 1)), kLongest);
}

class Look {
 public:
  explicit Look(const RowRules& rules) : rules_(rules) {}

  absl::Status over(const DatasetFiles& files) {
    for (const std::string& file : files.files) {
      TITAN_RETURN_IF_ERROR(over(file));
      if (ended_ || left_ == 0) return absl::OkStatus();
    }
    if (rows_ == 0 && files.files.size() == 1) {
      return absl::InvalidArgumentError(absl::StrCat(files.files.front(), " is empty"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("holds no document: ",
                     reasons_.empty() ? "every line is blank, or its text is empty" : first_reasons(reasons_)));
  }

 private:
  absl::Status over(const std::string& file) {
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> bytes, ByteSource::open(file, 0));
    LineReader lines = LineReader::over(file, {}, std::make_unique<FirstBytes>(std::move(bytes), left_));
    std::string_view line;
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const bool more, lines.next(line));
      if (!more) return absl::OkStatus();
      if (left_ == 0 && !line.ends_with('\n')) return cut_off(lines.name(), line);
      if (blank(line)) continue;
      // Lines of an array are no rows, though its last one reads like one.
      if (rows_ == 0 && opens_array(line)) {
        return absl::InvalidArgumentError(absl::StrCat(lines.name(), ": ", json_problem(line)));
      }
      TITAN_RETURN_IF_ERROR(note(lines.name(), line, problem_of(line, rules_, ended_)));
      if (ended_ || ++rows_ == kMostRows) return ended_ = true, absl::OkStatus();
    }
  }

  absl::Status note(const std::string& name, std::string_view line, const std::string& problem) {
    if (problem.empty()) return absl::OkStatus();
    // What a text begins with says most about a file that is not what it was taken for.
    const bool unknown = reasons_.empty() && problem == "not JSON";
    const std::string begin = unknown ? absl::StrCat(", begins with ", excerpt(line)) : "";
    reasons_.push_back(absl::StrCat(name, ": ", problem, begin));
    if (static_cast<int64_t>(reasons_.size()) <= rules_.max_bad_lines) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        reasons_.size() == 1 ? "the first line is" : absl::StrCat("the first ", reasons_.size(), " lines are"),
        " malformed, more than dataloader.max_bad_lines = ", rules_.max_bad_lines, ": ", first_reasons(reasons_)));
  }

  // Of a row that is longer than what is read: what cannot be the beginning of an object is known all the same.
  static absl::Status cut_off(const std::string& name, std::string_view line) {
    line = without_mark(line);
    if (line.starts_with('{') && foreign_bytes(line).empty()) return absl::OkStatus();
    const std::string foreign = foreign_bytes(line);
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", foreign.empty() ? json_problem(line.substr(0, 1)) : absl::StrCat("not JSON but ", foreign)));
  }

  const RowRules& rules_;
  int64_t left_ = kMostBytes, rows_ = 0;
  bool ended_ = false;  // With a document, or after enough rows.
  std::vector<std::string> reasons_;
};

}  // namespace

absl::Status check_first_rows(const DatasetFiles& files, const RowRules& rules) { return Look(rules).over(files); }

std::string first_reasons(const std::vector<std::string>& reasons) {
  const size_t shown = std::min(reasons.size(), kMostReasons);
  std::string text = absl::StrJoin(reasons.begin(), reasons.begin() + static_cast<std::ptrdiff_t>(shown), "; ");
  if (reasons.size() > shown) absl::StrAppend(&text, "; and ", reasons.size() - shown, " more");
  return text;
}

}  // namespace titan::data_files
