#pragma once

// Records that were set aside, as backends keep them whose records are checked elsewhere: as records of their own, in
// which nobody else writes.

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "controller/store/store.h"

namespace titan::store {

// What the keys of such records begin with; the key of the record that was set aside follows.
inline constexpr char kAsidePrefix[] = "quarantine/";

std::string aside_key(const std::string& key);
// Its bytes stay with the reason. Aborted when it was written since it was read.
Transaction setting_aside(const Record& record, const std::string& reason, absl::Time now);
// Nothing: the value is not one of setting_aside().
std::optional<Quarantined> read_aside(const std::string& key, const std::string& value);
// The value of a record that has been written or erased since. Nothing: that is so already.
std::optional<std::string> no_longer_lost(const std::string& value);

}  // namespace titan::store
