#pragma once

// Creates the files that a rank shares with its readers, and opens what a rank has left without trusting it.

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rank_protocol {

// Makes or replaces a file of `bytes` that its writer shares with readers, and maps it; the caller unmaps it.
// `set_up` fills it under another name, so that no reader sees one that is half set up. `what` names its kind in
// errors: those of the system, a full disk among them; then nothing is left of it.
absl::StatusOr<void*> create_page_file(absl::string_view what, const std::string& path, size_t bytes,
                                       absl::FunctionRef<void(void* page)> set_up);

// Opens what a rank has left, for a node's daemon or shim, which may do more than the rank may: no link is followed, no
// pipe waited at, and a file that has a second name may be somebody else's. `flags`: O_RDONLY or O_RDWR. The descriptor
// is the caller's to close. Errors: NotFound and the system's, InvalidArgument for what is not a plain file of one
// name.
absl::StatusOr<int> open_rank_file(const std::string& path, int flags);

// Its first bytes, at most `most`. Errors: as above, and those of reading.
absl::StatusOr<std::string> read_rank_file(const std::string& path, size_t most);

}  // namespace titan::rank_protocol
