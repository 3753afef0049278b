#pragma once

// The text of a fence, and what is said of its holder, wherever the fence is kept.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/fence.h"
#include "nlohmann/json.hpp"

namespace titan::storage {

// In the dump folder.
inline constexpr char kFenceFile[] = "fence.json", kFenceLock[] = ".fence.lock", kFenceAlive[] = ".fence-alive",
                      kFenceProbe[] = ".fence-probe";
// Publishing takes milliseconds, so whoever holds the lock this long was stopped in the middle of it.
inline constexpr absl::Duration kFencePatience = absl::Seconds(30);

// `path`: for messages. Errors: DataLoss that says what to do.
absl::StatusOr<Fence::Holder> holder_from_text(const std::string& path, const std::string& text);
nlohmann::json to_json(const Fence::Holder& holder);

std::string describe(const Fence::Holder& holder);

// The statuses of is_fenced() and is_in_use(). `folder`: "the dump folder /a/b".
absl::Status fenced_status(const std::string& folder, const std::string& job_uid, int attempt,
                           const Fence::Holder& holder);
absl::Status in_use_status(const std::string& folder, const Fence::Holder& holder, const std::string& what_to_choose);

// The holder is another attempt's from now on, or another job's; what is remembered stays.
void hand_over(Fence::Holder& holder, const Fence::Claim& claim, int attempt);

}  // namespace titan::storage
