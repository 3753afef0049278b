#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rank_protocol {

// Makes or replaces a file of `bytes` that its writer shares with readers, and maps it, for whoever asked to unmap.
// `set_up` fills it under another name, so that no reader sees one that is half set up. `what` names its kind in
// errors: those of the system, a full disk among them; then nothing is left of it.
absl::StatusOr<void*> create_page_file(absl::string_view what, const std::string& path, size_t bytes,
                                       absl::FunctionRef<void(void* page)> set_up);

}  // namespace titan::rank_protocol
