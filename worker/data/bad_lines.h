#pragma once

// What readers of documents say of data that is not as it should be.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/data/document_file.h"

namespace titan::data {

// `place`: "data.json:17: not JSON"; the malformed document is the `number`th of a pass.
absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind);
absl::Status no_documents();
absl::Status no_line_at(const std::string& file, int64_t offset);

}  // namespace titan::data
