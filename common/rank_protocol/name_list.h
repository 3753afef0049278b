#pragma once

// Many names as one text, in which those that differ by the number at their end are told together:
// "gpu-[001-250,300],login". A range counts up from its first number, with at least as many digits.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rank_protocol {

// In the order given. Names without ',', '[' and ']', as those of nodes are.
std::string fold_names(const std::vector<std::string>& names);
// The names that were folded. Errors: InvalidArgument for a text that is none, for an empty name, for one of more than
// 63 characters (no node has such an id) and for more than `most` names.
absl::StatusOr<std::vector<std::string>> unfold_names(absl::string_view text, size_t most);

}  // namespace titan::rank_protocol
