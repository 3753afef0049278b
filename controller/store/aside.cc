#include "controller/store/aside.h"

#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::store {
namespace {

// "lost 17 1700000000 9\n", the reason in so many bytes, then the record's.
constexpr char kLost[] = "lost ", kOver[] = "over ";

}  // namespace

std::string aside_key(const std::string& key) { return kAsidePrefix + key; }

Transaction setting_aside(const Record& record, const std::string& reason, absl::Time now) {
  std::string kept = absl::StrCat(kLost, record.revision, " ", absl::ToUnixSeconds(now), " ", reason.size(), "\n");
  absl::StrAppend(&kept, reason, record.value);
  Transaction transaction;
  transaction.mutations = {{record.key, std::nullopt, record.revision}, put(aside_key(record.key), std::move(kept))};
  return transaction;
}

std::optional<Quarantined> read_aside(const std::string& key, const std::string& value) {
  const size_t end = value.find('\n');
  if (end == std::string::npos || !absl::StartsWith(key, kAsidePrefix)) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(value.substr(0, end), ' ');
  Quarantined aside;
  aside.key = key.substr(strlen(kAsidePrefix));
  size_t reason = 0;
  if (fields.size() != 4 || !absl::SimpleAtoi(fields[1], &aside.revision) ||
      !absl::SimpleAtoi(fields[2], &aside.time_s) || !absl::SimpleAtoi(fields[3], &reason)) {
    return std::nullopt;
  }
  aside.lost = fields[0] == "lost";
  aside.reason = value.substr(end + 1, reason);
  return aside;
}

std::optional<std::string> no_longer_lost(const std::string& value) {
  if (!absl::StartsWith(value, kLost)) return std::nullopt;
  return kOver + value.substr(strlen(kLost));
}

}  // namespace titan::store
