#include "common/io/data_files/check_files.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/foreign_files.h"
#include "common/io/data_files/json_row.h"
#include "common/io/data_files/line_reader.h"
#include "common/io/data_files/megatron_index.h"
#include "common/io/data_files/parquet_library.h"
#include "common/io/data_files/token_manifest.h"

namespace titan::data_files {
namespace {

constexpr int64_t kMaxBytes = 16 << 20, kMaxRows = 10'000;
constexpr size_t kMaxReasons = 3;

// Reads the first bytes of a file. `left`: bytes that may still be read from all files together.
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

// Returns why a row has no document; "" for a row with one, or with an empty text, which is neither a document nor a
// fault. Sets `has_document` if the row has one.
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
  constexpr size_t kMaxLength = 60;
  return text::shortened(text::printable(line.substr(0, line.find_last_not_of("\r\n") + 1)), kMaxLength);
}

class FirstRowsCheck {
 public:
  explicit FirstRowsCheck(const RowRules& rules) : rules_(rules) {}

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
      // The lines of a JSON array are not rows, although the line of its last element can be parsed as one.
      if (rows_ == 0 && opens_array(line)) {
        return absl::InvalidArgumentError(absl::StrCat(lines.name(), ": ", json_problem(line)));
      }
      TITAN_RETURN_IF_ERROR(note(lines.name(), line, problem_of(line, rules_, ended_)));
      if (ended_ || ++rows_ == kMaxRows) return ended_ = true, absl::OkStatus();
    }
  }

  absl::Status note(const std::string& name, std::string_view line, const std::string& problem) {
    if (problem.empty()) return absl::OkStatus();
    // The beginning of a file that is not JSON best shows what it is.
    const bool unknown = reasons_.empty() && problem == "not JSON";
    const std::string begin = unknown ? absl::StrCat(", begins with ", excerpt(line)) : "";
    reasons_.push_back(absl::StrCat(name, ": ", problem, begin));
    if (static_cast<int64_t>(reasons_.size()) <= rules_.max_bad_lines) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        reasons_.size() == 1 ? "the first line is" : absl::StrCat("the first ", reasons_.size(), " lines are"),
        " malformed, more than dataloader.max_bad_lines = ", rules_.max_bad_lines, ": ", first_reasons(reasons_)));
  }

  // Checks a row that is longer than the read limit: its start still shows whether it can be an object.
  static absl::Status cut_off(const std::string& name, std::string_view line) {
    line = without_mark(line);
    if (line.starts_with('{') && foreign_bytes(line).empty()) return absl::OkStatus();
    const std::string foreign = foreign_bytes(line);
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", foreign.empty() ? json_problem(line.substr(0, 1)) : absl::StrCat("not JSON but ", foreign)));
  }

  const RowRules& rules_;
  int64_t left_ = kMaxBytes, rows_ = 0;
  bool ended_ = false;  // A document was found, or enough rows were read.
  std::vector<std::string> reasons_;
};

}  // namespace

absl::Status check_first_rows(const DatasetFiles& files, const RowRules& rules) {
  return FirstRowsCheck(rules).over(files);
}

std::string first_reasons(const std::vector<std::string>& reasons) {
  const size_t shown = std::min(reasons.size(), kMaxReasons);
  std::string text = absl::StrJoin(reasons.begin(), reasons.begin() + static_cast<std::ptrdiff_t>(shown), "; ");
  if (reasons.size() > shown) absl::StrAppend(&text, "; and ", reasons.size() - shown, " more");
  return text;
}

namespace {

constexpr size_t kMaxFiles = 100;

// Accepts anything that may be UTF-8. The first bytes reveal another encoding or a compressed file.
absl::Status check_text(const std::string& file) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::open(file, 0));
  char first[32];
  TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(first, sizeof first));
  const std::string foreign = foreign_bytes(std::string_view(first, got));
  if (foreign.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, " is not text in UTF-8 but ", foreign));
}

// Returns the number of rows (Parquet) or tokens in a file.
absl::StatusOr<int64_t> amount_in(DatasetFormat format, const std::string& file, const RowRules& rules) {
  if (format == DatasetFormat::kTitan) {
    TITAN_ASSIGN_OR_RETURN(const TokenManifest manifest, read_manifest(storage::posix_files(), file));
    return std::accumulate(manifest.shards.begin(), manifest.shards.end(), int64_t{0},
                           [](int64_t sum, const TokenManifest::Shard& shard) { return sum + shard.tokens; });
  }
  if (format == DatasetFormat::kMegatron) {
    TITAN_ASSIGN_OR_RETURN(const MegatronIndex index, MegatronIndex::open(file));
    return index.tokens();
  }
  const auto column = open_parquet_column(file, rules.text_key, rules.messages_key);
  if (absl::IsUnimplemented(column.status())) return 1;  // Nothing more can be checked without the library.
  if (!column.ok()) return column.status();
  const std::vector<int64_t> groups = (*column)->row_groups();
  return std::accumulate(groups.begin(), groups.end(), int64_t{0});
}

absl::Status check_headers(const DatasetFiles& files, const RowRules& rules) {
  int64_t amount = 0;
  for (size_t i = 0; i < files.files.size(); ++i) {
    if (i == kMaxFiles) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const int64_t part, amount_in(files.format, files.files[i], rules));
    amount += part;
  }
  if (amount > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("holds no document: ", files.files.front(), " has no ",
                                                 holds_tokens(files.format) ? "token" : "row",
                                                 files.files.size() > 1 ? ", nor has any other file" : ""));
}

}  // namespace

absl::Status check_files(const DatasetFiles& files, const RowRules& rules) {
  switch (files.format) {
    case DatasetFormat::kJsonLines:
      return check_first_rows(files, rules);
    case DatasetFormat::kText:
      return check_text(files.files.front());
    case DatasetFormat::kParquet:
    case DatasetFormat::kMegatron:
    case DatasetFormat::kTitan:
      return check_headers(files, rules);
    case DatasetFormat::kPlugin:
    case DatasetFormat::kAuto:
      break;
  }
  return absl::OkStatus();
}

}  // namespace titan::data_files
