#include "worker/checkpoint/exchange.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/clock.h"
#include "common/status/status.h"

namespace titan::checkpoint {
namespace {

// The store's own errors are exceptions: a closed connection, mostly because rank 0 is gone.
template <typename Call>
absl::Status guarded(Call&& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return absl::UnavailableError(absl::StrCat("the job's store failed: ", what.substr(0, what.find('\n'))));
  }
}

}  // namespace

absl::Status Exchange::await(const std::vector<std::string>& keys) {
  absl::Duration pause = absl::Microseconds(200);
  const absl::Duration give_up = system_clock().monotonic() + timeout_;
  while (true) {
    bool there = false;
    TITAN_RETURN_IF_ERROR(guarded([&] { there = store_->check(keys); }));
    if (there) return absl::OkStatus();
    if (stop_->load()) return absl::CancelledError("stopped while waiting for other ranks");
    if (system_clock().monotonic() > give_up) break;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
  std::string missing;
  for (const std::string& key : keys) {
    bool there = false;
    TITAN_RETURN_IF_ERROR(guarded([&] { there = store_->check({key}); }));
    if (!there) absl::StrAppend(&missing, missing.empty() ? "" : ", ", key);
  }
  return absl::DeadlineExceededError(absl::StrCat("no word within ", absl::FormatDuration(timeout_), " for ", missing));
}

absl::StatusOr<std::vector<std::string>> Exchange::gather(const std::string& topic, const std::string& report) {
  std::vector<std::string> reports;
  if (world_ == 1) return reports.push_back(report), reports;
  const auto key = [&](int rank) { return absl::StrCat("checkpoint/", topic, "/rank-", rank); };
  if (!leader()) {
    TITAN_RETURN_IF_ERROR(guarded([&] { store_->set(key(rank_), report); }));
    return reports;
  }
  std::vector<std::string> keys;
  for (int rank = 1; rank < world_; ++rank) keys.push_back(key(rank));
  TITAN_RETURN_IF_ERROR(await(keys));
  reports.push_back(report);
  TITAN_RETURN_IF_ERROR(guarded([&] {
    for (const std::string& k : keys) {
      reports.push_back(store_->get_to_str(k));
      store_->deleteKey(k);  // Nobody else reads it, and a long job makes many.
    }
    for (const std::string& k : spoken_) store_->deleteKey(k);  // All ranks are past it: they reported since.
    spoken_.clear();
  }));
  return reports;
}

absl::StatusOr<std::string> Exchange::broadcast(const std::string& topic, const std::string& words) {
  if (world_ == 1) return words;
  const std::string key = absl::StrCat("checkpoint/", topic);
  std::string heard = words;
  if (leader()) {
    TITAN_RETURN_IF_ERROR(guarded([&] { store_->set(key, words); }));
    spoken_.push_back(key);
  } else {
    TITAN_RETURN_IF_ERROR(await({key}));
    TITAN_RETURN_IF_ERROR(guarded([&] { heard = store_->get_to_str(key); }));
  }
  return heard;
}

}  // namespace titan::checkpoint
