#include "worker/rank/runtime/dump_folder.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/host/host_facts.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_fence.h"
#include "common/io/storage/folder_id.h"
#include "common/io/storage/process_identity.h"
#include "common/plan/config/json.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/rank_protocol/spool.h"
#include "nlohmann/json.hpp"

namespace titan::runtime {
namespace {

// The controller knows the folder, so a mount that is missing here must not become a new folder.
void check_folder(const RankJob& job) {
  if (job.folder_id.empty()) return;
  const std::string& dump = job.config.job.dump_folder;
  const storage::FolderComparison is = value(storage::compare_folder(storage::posix_files(), dump, job.folder_id),
                                             rank_protocol::kExitStorage, "DUMP_FOLDER");
  if (is == storage::FolderComparison::kSame) return;
  throw Failure(rank_protocol::kExitUserError, storage::folder_mismatch_reason(is),
                storage::folder_mismatch_message(is, dump, job.committed_step));
}

// Records the step known to be committed: by this job, according to the controller and the fence, or by another job. If
// checkpoint.load_step selects the start, the fence's record of earlier runs is ignored.
void note_committed(const RankJob& job, const storage::Fence::Taken& taken, RankContext& context) {
  const config::CheckpointSection& config = job.config.checkpoint;
  context.committed_step = job.committed_step;
  const auto known = taken.committed.find(config.folder);
  if (known == taken.committed.end() || config.load_step >= 0) return;
  if (known->second.job_uid == job.job_uid) {
    context.committed_step = std::max(context.committed_step, known->second.step);
  } else if (context.committed_step < 0) {
    context.committed_step = known->second.step;
    context.committed_by_another_job = true;
  }
}

}  // namespace

void take_dump_folder(const RankJob& job, RankContext& context) {
  check_folder(job);
  const storage::Fence fence(job.config.job.dump_folder);
  const absl::StatusOr<storage::Fence::Taken> taken =
      fence.take({.job_uid = job.job_uid,
                  .attempt = job.attempt,
                  .job = job.job,
                  .host = host::hostname(),
                  .pid = ::getpid(),
                  .process = storage::process_identity(),
                  .create_folder = job.folder_id.empty()},
                 {.sleep = {}, .say = [&](const std::string& text) { context.reporter->warning(text); }});
  const std::string message(taken.status().message());
  if (storage::is_in_use(taken.status())) throw Failure(rank_protocol::kExitFenced, "DUMP_FOLDER_IN_USE", message);
  if (storage::is_fenced(taken.status())) throw Failure(rank_protocol::kExitFenced, "FENCED", message);
  // No other rank is involved, so a lock held by another process is not a lost rank.
  if (absl::IsUnavailable(taken.status()) || absl::IsDeadlineExceeded(taken.status())) {
    throw Failure(rank_protocol::kExitStorage, "FENCE", message);
  }
  check(taken.status(), rank_protocol::kExitStorage, "FENCE");
  context.attempt = taken->attempt;
  context.hold = std::make_unique<storage::FenceLease>(fence, job.job_uid, taken->attempt);
  note_committed(job, *taken, context);
  if (taken->taken_from.empty()) return;
  context.reporter->warning(absl::StrCat("the dump folder ", job.config.job.dump_folder, " was taken over from ",
                                         taken->taken_from, ", which ended without releasing it"));
}

absl::Status has_dump_folder(const RankContext& context) {
  TITAN_ASSIGN_OR_RETURN(const storage::Fence::Holder holder, storage::Fence(context.config.job.dump_folder).holder());
  if (holder.job_uid == context.job_uid && holder.attempt == context.attempt) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the dump folder ", context.config.job.dump_folder,
                   holder.job_uid.empty() ? " is gone" : " belongs to another attempt"));
}

void save_config(const RankContext& context) {
  const std::string& folder = context.config.job.dump_folder;
  const absl::Status saved = storage::Fence(folder).publish(context.job_uid, context.attempt, [&] {
    return storage::atomic_write(storage::posix_files(), storage::join_path(folder, "config.json"),
                                 config::to_json(context.config).dump(2) + "\n");
  });
  if (storage::is_fenced(saved)) check(saved, rank_protocol::kExitFenced, "FENCED");
  if (!saved.ok()) context.reporter->warning(absl::StrCat("config.json is not saved: ", std::string(saved.message())));
}

Failure with_holder(const RankJob& job, Failure failure) {
  if (failure.exit_code() != rank_protocol::kExitFenced) return failure;
  const std::string& dump = job.config.job.dump_folder;
  absl::StatusOr<storage::Fence::Holder> holder = storage::Fence(dump).holder();
  if (s3::is_location(job.config.checkpoint.folder) && holder.ok() && holder->job_uid == job.job_uid) {
    const auto other =
        s3::other_holder(job.config.checkpoint.folder, s3::holder_name(job.job_uid, dump).value_or(job.job_uid));
    if (other) holder = *other;
  }
  if (!holder.ok() || holder->job_uid.empty()) return failure;
  return std::move(failure).with_members({{"holder_job", holder->job.empty() ? holder->job_uid : holder->job},
                                          {"holder_attempt", holder->attempt},
                                          {"same_job", holder->job_uid == job.job_uid}});
}

namespace {

// Writes the newest calls to the run folder, where they survive a rank that hangs or is killed. If the disk is full,
// only this record is lost.
void attach_tail(RankContext& context) {
  absl::StatusOr<std::unique_ptr<rank_protocol::FlightTail>> tail = rank_protocol::FlightTail::create(
      rank_protocol::flight_tail_path(context.run_folder, context.rank), context.rank);
  if (tail.ok()) return context.recorder->attach(*std::move(tail));
  context.reporter->warning(
      absl::StrCat("if this rank hangs, its last collectives will not be known: ", tail.status().message()));
}

}  // namespace

std::shared_ptr<FlightDump> start_recordings(RankContext& context) {
  const config::CommSection& config = context.config.comm;
  if (context.world == 1 || config.trace_buf_size == 0) return {};
  using Waits = comm::FlightRecorder::Waits;
  context.recorder = std::make_shared<comm::FlightRecorder>(
      config.trace_buf_size,
      context.device->torch_device().is_cuda() ? Waits::kCompletesOnSync : Waits::kCompletesOnWait);
  attach_tail(context);
  const std::string prefix = absl::StrCat(storage::join_path(context.config.job.dump_folder, config.save_traces_folder),
                                          "/", config.save_traces_file_prefix);
  return std::make_shared<FlightDump>(
      FlightDump::Setup{.recorder = context.recorder, .prefix = prefix, .rank = context.rank, .admit = [&context] {
                          return has_dump_folder(context);
                        }});
}

Failure name_recordings(const std::shared_ptr<FlightDump>& dump, Failure failure, Reporter& reporter) {
  if (!dump) return failure;
  if (const absl::Status status = dump->status(); !status.ok()) {
    reporter.warning(absl::StrCat("this rank's last collectives are not recorded: ", status.message()));
  }
  return dump->name_in(std::move(failure));
}

}  // namespace titan::runtime
