#pragma once

// Many names as one text, in which names that differ only in the number at their end are folded:
// "gpu-[001-250,300],login". A range counts up from its first number, with at least as many digits.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rank_protocol {

// Folds the names in their order. Names must not contain ',', '[' or ']'; node ids never do.
std::string fold_names(const std::vector<std::string>& names);
// Inverse of fold_names(). Errors: InvalidArgument for a malformed text, an empty name, a name of more than 63
// characters (the limit of node ids) and more than `most` names.
absl::StatusOr<std::vector<std::string>> unfold_names(absl::string_view text, size_t most);

}  // namespace titan::rank_protocol
