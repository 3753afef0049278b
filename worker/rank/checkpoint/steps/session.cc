#include "worker/rank/checkpoint/steps/session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock/clock.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_files.h"
#include "common/plan/models/spec_checks.h"
#include "common/rank_protocol/launch.h"
#include "worker/rank/checkpoint/steps/object_steps.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"

namespace titan::checkpoint {
namespace {

std::unique_ptr<StepStore> make_step_store(Session& session) {
  const Setup& setup = session.setup;
  if (!s3::is_location(session.folder)) {
    return std::make_unique<StepStore>(session.files, session.folder, session.fence, setup.job_uid, setup.attempt);
  }
  return std::make_unique<ObjectStepStore>(session.files, session.folder, session.fence, setup.dump_folder,
                                           setup.job_uid, setup.attempt, [&session](const std::string& text) {
                                             session.emit(rank_protocol::event::kWarning, {{"message", text}});
                                           });
}

}  // namespace

Session::Session(Setup given)
    : setup(std::move(given)),
      files(setup.files != nullptr ? *setup.files : s3::all_files()),
      folder(storage::join_path(setup.dump_folder, setup.config.folder)),
      fence(setup.dump_folder, files),
      exchange(setup.store, setup.rank, setup.world, {setup.peer_timeout, setup.peer_silence, setup.peer_start}, &stop,
               setup.fan_out),
      own_step_store_(make_step_store(*this)),
      step_store(*own_step_store_) {
  if (setup.world > 1) heartbeat_ = std::make_unique<Heartbeat>(*setup.store, setup.rank, setup.peer_silence / 15);
}

std::string Session::next_topic(const char* what) { return absl::StrCat(what, "/", ++operations_); }

Manifest Session::manifest(int64_t step, CheckpointKind kind) const {
  return {.step = step,
          .full = kind == CheckpointKind::kFull,
          .attempt = setup.attempt,
          .job_uid = setup.job_uid,
          .world = setup.world,
          .load_step = setup.config.load_step,
          .titan_version = TITAN_VERSION,
          .model = setup.model ? models::to_json(*setup.model) : nlohmann::json(),
          .config = setup.job_config};
}

ShardName Session::shard_name() const {
  ShardName name{setup.attempt, setup.rank};
  if (s3::is_location(folder)) name.salt = host::random_hex(4);
  return name;
}

// If checkpoint.load_step names the start, earlier commits do not matter.
absl::Status Session::take_folder() {
  TITAN_ASSIGN_OR_RETURN(const Remembered last, step_store.take());
  if (last.step < 0 || setup.config.load_step >= 0) return absl::OkStatus();
  if (!last.by_another_job) {
    setup.committed_step = std::max(setup.committed_step, last.step);
  } else if (setup.committed_step < 0) {
    setup.committed_step = last.step;
    setup.committed_by_another_job = true;
  }
  return absl::OkStatus();
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
