#pragma once

// Creates the files that a rank shares with its readers, and opens a rank's files without trusting them.

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rank_protocol {

// Creates or replaces a file of `bytes` bytes that its writer shares with readers, and maps it; the caller unmaps it.
// `set_up` fills it under another name, so no reader sees a partial page. `what` names the kind of file in errors.
// Errors: the system's, such as a full disk; then no new file is left.
absl::StatusOr<void*> create_page_file(absl::string_view what, const std::string& path, size_t bytes,
                                       absl::FunctionRef<void(void* page)> set_up);

// Opens a rank's file for a node's daemon or shim, which have more privileges than the rank. It does not follow links
// or block on pipes, and rejects a file with a second name, which may be another user's. `flags`: O_RDONLY or O_RDWR.
// The caller closes the descriptor. Errors: NotFound and the system's, InvalidArgument for anything but a plain file
// with one name.
absl::StatusOr<int> open_rank_file(const std::string& path, int flags);

// Reads at most `most` bytes from the start of a rank's file. Errors: those of open_rank_file(), and those of reading.
absl::StatusOr<std::string> read_rank_file(const std::string& path, size_t most);

}  // namespace titan::rank_protocol
