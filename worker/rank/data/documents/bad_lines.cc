#include "worker/rank/data/documents/bad_lines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/io/data_files/first_rows.h"

namespace titan::data {

absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind) {
  return absl::InvalidArgumentError(absl::StrCat(place, "; that is malformed ", document_word(kind), " ", number,
                                                 ", more than dataloader.max_bad_lines = ", most, " (",
                                                 document_rule(kind), ")"));
}

absl::Status no_documents(std::vector<std::string> reasons) {
  for (std::string& reason : reasons) reason = std::string(absl::StripSuffix(reason, ", skipped"));
  return absl::InvalidArgumentError(
      absl::StrCat("the dataset has no document with text for this rank: ",
                   reasons.empty() ? "every line is blank or has an empty text" : data_files::first_reasons(reasons)));
}

}  // namespace titan::data
