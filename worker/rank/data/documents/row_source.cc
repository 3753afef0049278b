#include "worker/rank/data/documents/row_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"

namespace titan::data {
namespace {

constexpr int64_t kFewRows = 8;

constexpr std::pair<Shuffle, const char*> kShuffles[] = {
    {Shuffle::kNone, "none"}, {Shuffle::kRows, "rows"}, {Shuffle::kDocuments, "documents"}};

}  // namespace

const char* name(Shuffle shuffle) {
  for (const auto& [value, text] : kShuffles) {
    if (value == shuffle) return text;
  }
  return "";
}

std::optional<Shuffle> shuffle_from_name(std::string_view name) {
  for (const auto& [value, text] : kShuffles) {
    if (name == text) return value;
  }
  return std::nullopt;
}

// Without this warning nothing would show why the loss goes to zero after a wrong path or a strict filter.
std::string few_rows_warning(int64_t tokens, int64_t row_tokens) {
  if (tokens >= kFewRows * row_tokens) return "";
  return absl::StrCat("the dataset has only ", counted(tokens, "token"), ", fewer than ", kFewRows, " rows of ",
                      row_tokens - 1, ": training repeats them without end");
}

}  // namespace titan::data
