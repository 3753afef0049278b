#include "worker/checkpoint/session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/clock.h"
#include "common/models/identity.h"
#include "common/status/status.h"
#include "worker/checkpoint/verdict.h"

namespace titan::checkpoint {

Session::Session(Setup given)
    : setup(std::move(given)),
      files(setup.files != nullptr ? *setup.files : storage::posix_files()),
      folder(storage::join_path(setup.dump_folder, setup.config.folder)),
      fence(setup.dump_folder, files),
      exchange(setup.store, setup.rank, setup.world, {setup.peer_timeout, setup.peer_silence, setup.peer_start}, &stop,
               setup.fan_out),
      janitor(files, folder, fence, setup.job_uid, setup.attempt) {
  if (setup.world > 1) pulse_ = std::make_unique<Pulse>(*setup.store, setup.rank, setup.peer_silence / 15);
}

std::string Session::next_topic(const char* what) { return absl::StrCat(what, "/", ++operations_); }

Manifest Session::manifest(int64_t step, Kind kind) const {
  return {.step = step,
          .full = kind == Kind::kFull,
          .attempt = setup.attempt,
          .job_uid = setup.job_uid,
          .world = setup.world,
          .load_step = setup.config.load_step,
          .titan_version = TITAN_VERSION,
          .model = setup.model ? models::to_json(*setup.model) : nlohmann::json(),
          .config = setup.job_config};
}

absl::Status Session::conclude(const std::string& topic, const absl::Status& leaders) {
  TITAN_ASSIGN_OR_RETURN(const std::string words, exchange.broadcast(topic, leader() ? to_json(leaders).dump() : ""));
  return status_from_json(nlohmann::json::parse(words, nullptr, false));
}

absl::Status Session::rest(absl::Duration duration, const std::function<bool()>& enough) const {
  const absl::Duration until = system_clock().monotonic() + duration;
  while (!stop) {
    const absl::Duration left = until - system_clock().monotonic();
    if (left <= absl::ZeroDuration() || enough()) return absl::OkStatus();
    absl::SleepFor(std::min(left, absl::Milliseconds(50)));
  }
  return absl::CancelledError("stopped between two tries of a save");
}

}  // namespace titan::checkpoint
