#pragma once

// Converts a fence to and from text, and describes its holder, wherever the fence is kept.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/fence.h"
#include "nlohmann/json.hpp"

namespace titan::storage {

// File names in the dump folder.
inline constexpr char kFenceFile[] = "fence.json", kFenceLock[] = ".fence.lock", kFenceAlive[] = ".fence-alive",
                      kFenceProbe[] = ".fence-probe";
// Publishing takes milliseconds, so a process that holds the lock for this long was stopped while it published.
inline constexpr absl::Duration kFenceLockTimeout = absl::Seconds(30);

// Parses a fence; `path` is for messages. Errors: DataLoss, which says what to do.
absl::StatusOr<Fence::Holder> holder_from_text(const std::string& path, const std::string& text);
nlohmann::json to_json(const Fence::Holder& holder);

std::string describe(const Fence::Holder& holder);

// Return the statuses of is_fenced() and is_in_use(). `folder`: such as "the dump folder /a/b".
absl::Status fenced_status(const std::string& folder, const std::string& job_uid, int attempt,
                           const Fence::Holder& holder);
absl::Status in_use_status(const std::string& folder, const Fence::Holder& holder, const std::string& what_to_choose);

// Makes `attempt` of the claim's job the holder; recorded steps stay.
void hand_over(Fence::Holder& holder, const Fence::Claim& claim, int attempt);

}  // namespace titan::storage
