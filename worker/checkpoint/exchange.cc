#include "worker/checkpoint/exchange.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/clock/clock.h"
#include "common/status/status.h"

namespace titan::checkpoint {
namespace {

absl::Status store_failed(const char* store, const std::exception& error) {
  const std::string what = error.what();
  return absl::UnavailableError(absl::StrCat(store, " failed: ", what.substr(0, what.find('\n'))));
}

// The store's own errors are exceptions: a closed connection, mostly because rank 0 is gone, or (between threads) the
// failure of another rank.
template <typename Call>
absl::Status ask_store(Call&& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const c10::DistNetworkError& error) {
    return store_failed("the job's store on rank 0", error);
  } catch (const std::exception& error) {
    return store_failed("the job's store", error);
  }
}

}  // namespace

absl::Status Exchange::check_pulses(PulseWatch& watch, const std::vector<std::string>& keys,
                                    const std::vector<int>& ranks) {
  std::vector<PulseWatch::Lost> lost;
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    std::vector<int> missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!store_->check({keys[i]})) missing.push_back(ranks[i]);
    }
    lost = watch.lost(missing);
  }));
  if (lost.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const PulseWatch::Lost& one : lost) {
    names.push_back(absl::StrCat("rank ", one.rank, " has shown no sign of life for ",
                                 absl::FormatDuration(absl::Trunc(one.silence, absl::Milliseconds(1)))));
  }
  return absl::UnavailableError(absl::StrCat(absl::StrJoin(names, ", "), ", and a checkpoint needs its part"));
}

absl::Status Exchange::await(const std::vector<std::string>& keys, const std::vector<int>& ranks) {
  absl::Duration pause = absl::Microseconds(200);
  const absl::Duration began = system_clock().monotonic();
  const absl::Duration look_every = patience_.silence / 10;
  absl::Duration next_look = began + look_every;
  PulseWatch watch(*store_, patience_.silence, patience_.start);
  while (true) {
    bool there = false;
    TITAN_RETURN_IF_ERROR(ask_store([&] { there = store_->check(keys); }));
    if (there) return absl::OkStatus();
    if (stop_->load()) return absl::CancelledError("stopped while waiting for other ranks");
    const absl::Duration now = system_clock().monotonic();
    if (now - began > patience_.timeout) break;
    if (now > next_look) {
      TITAN_RETURN_IF_ERROR(check_pulses(watch, keys, ranks));
      next_look = now + look_every;
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
  std::string missing;
  for (const std::string& key : keys) {
    bool there = false;
    TITAN_RETURN_IF_ERROR(ask_store([&] { there = store_->check({key}); }));
    if (!there) absl::StrAppend(&missing, missing.empty() ? "" : ", ", key);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no word within ", absl::FormatDuration(patience_.timeout), " for ", missing));
}

absl::StatusOr<std::string> Exchange::gather(const std::string& topic, const std::string& report, Join join) {
  std::vector<std::string> reports;
  if (world_ == 1) return report;
  const auto key = [&](int rank) { return absl::StrCat("checkpoint/", topic, "/rank-", rank); };
  if (!leader()) {
    TITAN_RETURN_IF_ERROR(ask_store([&] { store_->set(key(rank_), report); }));
    return "";
  }
  std::vector<std::string> keys;
  std::vector<int> ranks;
  for (int rank = 1; rank < world_; ++rank) {
    keys.push_back(key(rank));
    ranks.push_back(rank);
  }
  TITAN_RETURN_IF_ERROR(await(keys, ranks));
  reports.push_back(report);
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    for (const std::string& k : keys) {
      reports.push_back(store_->get_to_str(k));
      store_->deleteKey(k);  // Nobody else reads it, and a long job makes many.
    }
    for (const std::string& k : spoken_) store_->deleteKey(k);  // All ranks are past it: they reported since.
    spoken_.clear();
  }));
  return join(reports);
}

absl::Status Exchange::share(const std::string& name, const std::string& text) {
  if (!given_.insert(name).second) return absl::OkStatus();
  const std::string key = absl::StrCat("checkpoint/shared/", name);
  return ask_store([&] {
    if (store_->add(key + "/taken", 1) == 1) store_->set(key, text);
  });
}

absl::StatusOr<std::string> Exchange::shared(const std::string& name) {
  const std::string key = absl::StrCat("checkpoint/shared/", name);
  std::string text;
  bool there = false;
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    there = store_->check({key});
    if (there) text = store_->get_to_str(key);
  }));
  if (!there) return absl::InternalError(absl::StrCat("a report names ", key, ", which is not in the store"));
  return text;
}

absl::StatusOr<std::string> Exchange::broadcast(const std::string& topic, const std::string& words) {
  if (world_ == 1) return words;
  const std::string key = absl::StrCat("checkpoint/", topic);
  std::string heard = words;
  if (leader()) {
    TITAN_RETURN_IF_ERROR(ask_store([&] { store_->set(key, words); }));
    spoken_.push_back(key);
  } else {
    TITAN_RETURN_IF_ERROR(await({key}, {0}));
    TITAN_RETURN_IF_ERROR(ask_store([&] { heard = store_->get_to_str(key); }));
  }
  return heard;
}

}  // namespace titan::checkpoint
