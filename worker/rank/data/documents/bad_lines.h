#pragma once

// What readers of documents say of data that is not as it should be.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// `place`: "data.json:17: not JSON"; the malformed document is the `number`th of a pass.
absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind);
// When a whole pass gave nothing to train on. `reasons`: what was said of its malformed documents, place by place.
absl::Status no_documents(std::vector<std::string> reasons);

}  // namespace titan::data
