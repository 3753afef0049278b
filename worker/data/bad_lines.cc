#include "worker/data/bad_lines.h"

#include "absl/strings/str_cat.h"

namespace titan::data {

absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind) {
  return absl::InvalidArgumentError(absl::StrCat(place, "; that is malformed ", document_word(kind), " ", number,
                                                 ", more than dataloader.max_bad_lines = ", most, " (",
                                                 document_rule(kind), ")"));
}

absl::Status no_documents() {
  return absl::InvalidArgumentError(
      "the dataset has no document with text for this rank: every line is blank or malformed");
}

absl::Status no_line_at(const std::string& file, int64_t offset) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": no line starts at byte ", offset,
                                                 ", where the checkpoint's data position is: the dataset has changed"));
}

}  // namespace titan::data
