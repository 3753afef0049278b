#include "worker/rank/checkpoint/saving/saver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock/clock.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/launch.h"
#include "worker/rank/checkpoint/saving/hf_save.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"

namespace titan::checkpoint {
namespace {

namespace event = rank_protocol::event;
using nlohmann::json;

// Returns whether a retry may succeed: a full or broken disk may be repaired. A fence, a lost rank or a mistake stays.
bool is_retryable(const absl::Status& status) {
  return !is_rank_lost(status) && !absl::IsFailedPrecondition(status) && !absl::IsInvalidArgument(status) &&
         !absl::IsUnimplemented(status);
}

// Waits for the copies. Their failure is FailedPrecondition, because a retry would not help.
absl::Status await_copies(const Session& session, const Save& save) {
  absl::Status status = save.staged;
  if (status.ok() && save.copies != nullptr) {
    status = caught([&] {
      const auto doing = session.doing("wait for the device's copies");
      save.copies->wait();
      return absl::OkStatus();
    });
  }
  if (status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("the tensors could not be copied: ", std::string(status.message())));
}

std::string rounded(absl::Duration duration) {
  const absl::Duration unit = duration < absl::Seconds(1) ? absl::Milliseconds(1) : absl::Seconds(1);
  return absl::FormatDuration(absl::Ceil(duration, unit));
}

}  // namespace

Saver::~Saver() {
  session_.stop = true;
  if (writer_.joinable()) writer_.join();
}

absl::Status Saver::wait() {
  if (!writer_.joinable()) return fenced_;
  writer_.join();
  return written_;
}

Save Saver::make_save(const char* topic, int64_t step, CheckpointKind kind, TrainState state) {
  return {.topic = session_.next_topic(topic),
          .step = step,
          .kind = kind,
          .state = std::move(state),
          .begin = system_clock().monotonic()};
}

absl::Status Saver::save(int64_t step, const std::vector<Slice>& slices, TrainState state, CheckpointKind kind) {
  TITAN_RETURN_IF_ERROR(wait());
  if (kind == CheckpointKind::kFull && last_committed_ == step)
    return absl::OkStatus();  // The same state is already safe.
  Save save = make_save("save", step, kind, std::move(state));
  const std::string& mode = session_.setup.config.async_mode;
  if (mode == "disabled") {
    stage(slices, kind, std::nullopt, Copy::kWhereNeeded, save.parts);
    return write(save);
  }
  const bool pinned = mode == "async_with_pinned_mem";
  if (pinned) open_copies(slices);
  save.staged = stage_async(slices, kind);
  save.parts = buffers_;
  save.copies = copies_;
  if (session_.leader()) {
    if (pinned && !slices.empty() && copies_ == nullptr && !std::exchange(warned_of_pinned_, true)) {
      session_.emit(event::kWarning, {{"message",
                                       "checkpoint.async_mode = \"async_with_pinned_mem\" is \"async\" here: "
                                       "the tensors are not in GPU memory"}});
    }
    session_.emit(event::kStaged, {{"step", step}});
  }
  running_ = true;
  writer_ = std::thread([this, save = std::move(save)] {
    written_ = write(save);
    running_ = false;
  });
  return absl::OkStatus();
}

// Sets copies_ if there are tensors that a device can copy by itself.
void Saver::open_copies(const std::vector<Slice>& slices) {
  if (copies_ != nullptr) return;
  copies_ = session_.setup.copies;
  if (copies_ != nullptr || slices.empty() || slices.front().local.is_cpu()) return;
  own_copies_ = make_copy_stream(slices.front().local.device());
  copies_ = own_copies_.get();
}

// Copies the slices. A failure fails this save, not the training: all ranks learn of it when the step is written.
absl::Status Saver::stage_async(const std::vector<Slice>& slices, CheckpointKind kind) {
  return caught([&] {
    copies_in_flight_ = copies_ != nullptr;
    stage(slices, kind, std::nullopt, Copy::kAlways, buffers_, copies_);
    return absl::OkStatus();
  });
}

void Saver::before_update() {
  if (std::exchange(copies_in_flight_, false)) copies_->block_current_stream();
}

absl::Status Saver::save_last(int64_t step, const std::vector<Slice>& slices, TrainState state) {
  TITAN_RETURN_IF_ERROR(wait());
  const config::CheckpointSection& config = session_.setup.config;
  const CheckpointKind kind = config.last_save_model_only ? CheckpointKind::kModel : CheckpointKind::kFull;
  Save save = make_save("last", step, kind, std::move(state));
  // A Hugging Face export casts when it makes its files; a full checkpoint keeps every type.
  const bool cast = kind == CheckpointKind::kModel && !config.last_save_in_hf;
  std::vector<std::string> warnings;
  stage(slices, kind, cast ? std::optional(export_type(config)) : std::nullopt, Copy::kWhereNeeded, save.parts,
        /*copies=*/nullptr, &warnings);
  for (const std::string& warning : warnings) session_.emit(rank_protocol::event::kWarning, {{"message", warning}});
  absl::Status status = persist(save, retry_time(), [&](const Save& one) {
    return config.last_save_in_hf ? save_as_hugging_face(session_, one) : run(one);
  });
  settle(save, status).IgnoreError();  // Emits the event.
  return status;
}

absl::Status Saver::save_before_stop(int64_t step, const std::vector<Slice>& slices, TrainState state,
                                     absl::Duration timeout) {
  TITAN_RETURN_IF_ERROR(wait());
  if (last_committed_ == step) return absl::OkStatus();
  Save save = make_save("stop", step, CheckpointKind::kFull, std::move(state));
  stage(slices, save.kind, std::nullopt, Copy::kWhereNeeded, save.parts);
  absl::Status status = persist(save, std::min(timeout, retry_time()), [this](const Save& one) { return run(one); });
  settle(save, status).IgnoreError();  // Emits the event.
  return status;
}

// Returns how long to retry. A seed is made again in seconds, so it is not worth waiting for a disk.
absl::Duration Saver::retry_time() const {
  const config::CheckpointSection& config = session_.setup.config;
  return config.create_seed_checkpoint ? absl::ZeroDuration() : absl::Seconds(config.last_save_retry_seconds);
}

// Runs an ordinary save. Retries it only if its failure would end the attempt.
absl::Status Saver::write(const Save& save) {
  const int64_t allowed = session_.setup.failed_saves_allowed;
  const bool fatal = allowed > 0 && failures_ + 1 >= allowed;
  return settle(
      save, persist(save, fatal ? retry_time() : absl::ZeroDuration(), [this](const Save& one) { return run(one); }));
}

// Runs the save, and retries it as long as storage fails and `timeout` lasts. Rank 0's clock decides for all. A stop
// request meanwhile ends the pause, on each rank separately, and leaves less time.
absl::Status Saver::persist(Save save, absl::Duration timeout, const Run& run) {
  const Setup& setup = session_.setup;
  const std::string topic = save.topic;
  absl::Duration deadline = system_clock().monotonic() + timeout;
  absl::Duration pause = setup.retry_pause;
  bool stopping = false;
  const auto stop_is_news = [&] { return !stopping && setup.time_left_after_stop && setup.time_left_after_stop(); };
  for (int tries = 1;; ++tries) {
    if (stop_is_news()) {
      stopping = true;
      deadline = std::min(deadline, system_clock().monotonic() + setup.time_left_after_stop().value());
      pause = setup.retry_pause;
    }
    save.topic = absl::StrCat(topic, "/try-", tries);
    absl::Status status = run(save);
    if (status.ok() || !is_retryable(status)) return status;
    const absl::Duration left = deadline - system_clock().monotonic();
    std::string answer = "enough";
    if (session_.leader() && left > absl::ZeroDuration()) {
      pause = std::min(pause, left);
      answer = absl::StrCat(absl::ToInt64Milliseconds(pause));
      session_.emit(
          event::kWarning,
          {{"message", absl::StrCat("step ", save.step, " could not be saved: ", std::string(status.message()),
                                    "; try ", tries + 1, " in ", rounded(pause), ", giving up in ", rounded(left),
                                    stopping ? " because a stop was requested" : "")}});
      pause = std::min(2 * pause, absl::Minutes(1));
    }
    TITAN_ASSIGN_OR_RETURN(answer, session_.exchange.broadcast(save.topic + "/again", answer));
    int64_t milliseconds = 0;
    if (!absl::SimpleAtoi(answer, &milliseconds)) return status;
    if (setup.still_trying) setup.still_trying();
    TITAN_RETURN_IF_ERROR(session_.rest(absl::Milliseconds(milliseconds), stop_is_news));
  }
}

// Applies the rule for failed saves, which decides what the caller of save() or wait() sees.
absl::Status Saver::settle(const Save& save, absl::Status status) {
  if (status.ok()) {
    failures_ = 0;
    if (save.kind == CheckpointKind::kFull) last_committed_ = save.step;
    return status;
  }
  if (storage::is_fenced(status)) return fenced_ = status;
  if (session_.leader() && !absl::IsCancelled(status)) {
    session_.emit(event::kCheckpointFailed, {{"step", save.step}, {"reason", std::string(status.message())}});
  }
  if (absl::IsUnavailable(status)) return status;  // No ranks remain to continue training with.
  ++failures_;
  const int64_t allowed = session_.setup.failed_saves_allowed;
  if (allowed == 0 || failures_ < allowed) return absl::OkStatus();
  if (session_.setup.config.create_seed_checkpoint) return status;  // The seed is its only save.
  return annotate(status, absl::StrCat("failed saves in a row: ", failures_, " (checkpoint.max_failed_saves = ",
                                       allowed, "), the newest of step ", save.step));
}

// Writes this rank's shard, reports, and receives the verdict. If rank 0 finds that no manifest names the shards, every
// rank removes its own.
absl::Status Saver::run(const Save& save) {
  if (save.kind == CheckpointKind::kModel) {
    TITAN_ASSIGN_OR_RETURN(const bool full, already_full(save));
    if (full) {
      if (session_.leader()) {
        session_.emit(event::kWarning,
                      {{"message", absl::StrCat("step ", save.step,
                                                " was already saved in full; its model-only save is skipped")}});
      }
      return absl::OkStatus();
    }
  }
  const std::string path = step_path(session_.folder, save.step);
  absl::StatusOr<WrittenShard> shard(absl::UnknownError("not written"));
  if (const absl::Status made = session_.files.make_folders(path); made.ok()) {
    shard = caught([&]() -> absl::StatusOr<WrittenShard> {
      TITAN_RETURN_IF_ERROR(await_copies(session_, save));
      const auto doing = session_.doing("write shard");
      return write_shard(session_.files, path, session_.shard_name(), save.parts, &session_.stop);
    });
  } else {
    shard = made;
  }
  const auto gather = [&] {
    const auto doing = session_.doing("wait for all ranks' shards");
    return session_.shards.gather(save.topic, shard, save.state.per_rank);
  };
  const absl::StatusOr<std::string> reports = gather();
  absl::Status published = reports.status();
  bool discard = false;
  if (session_.leader() && published.ok()) published = as_local_error(publish(save, *reports, discard));
  json words = to_json(published);
  words["discard"] = discard;
  TITAN_ASSIGN_OR_RETURN(const std::string heard, session_.exchange.broadcast(save.topic + "/verdict", words.dump()));
  const json verdict = json::parse(heard, nullptr, false);
  // Only if rank 0 says so: a manifest may name the shard although this rank never heard that it was published.
  if (verdict.value("discard", false)) remove_rest(save, shard);
  return status_from_json(verdict);
}

// Removes this rank's shard, and an empty step folder. The next start's cleaning finds what cannot be removed now.
void Saver::remove_rest(const Save& save, const absl::StatusOr<WrittenShard>& shard) {
  if (shard.ok() && shard->has_file) {
    const std::string path = step_path(session_.folder, save.step);
    session_.files.remove(storage::join_path(path, shard->file.name)).IgnoreError();
  }
  // The folder is removed once all ranks have removed their files.
  const auto all_did = session_.exchange.gather(save.topic + "/removed", "", [](const auto&) { return ""; });
  if (session_.leader() && all_did.ok()) session_.step_store.remove_if_empty(save.step).IgnoreError();
}

absl::StatusOr<bool> Saver::already_full(const Save& save) {
  std::string answer;
  if (session_.leader()) {
    const auto reader = StepReader::open(session_.files, step_path(session_.folder, save.step));
    answer = reader.ok() && (*reader)->manifest().full ? "full" : "no";
  }
  TITAN_ASSIGN_OR_RETURN(answer, session_.exchange.broadcast(save.topic + "/there", answer));
  return answer == "full";
}

// `discard` is set if it failed and certainly no manifest names the new shards.
absl::Status Saver::publish(const Save& save, const std::string& words, bool& discard) {
  const auto doing = session_.doing("publish manifest");
  discard = true;
  const Setup& setup = session_.setup;
  Manifest manifest = session_.manifest(save.step, save.kind);
  manifest.train_state = save.state.shared;
  TITAN_RETURN_IF_ERROR(session_.shards.complete(words, manifest));
  storage::Files& files = session_.files;
  const std::string text = to_text(manifest);
  TITAN_RETURN_IF_ERROR(files.sync_folder(session_.folder));
  TITAN_RETURN_IF_ERROR(files.sync_folder(setup.dump_folder));
  TITAN_RETURN_IF_ERROR(session_.take_folder());
  TITAN_RETURN_IF_ERROR(session_.step_store.publish(manifest, text, setup.config.folder, discard));
  session_.emit(event::kCommitted, {{"step", save.step},
                                    {"full", manifest.full},
                                    {"seconds", absl::ToDoubleSeconds(system_clock().monotonic() - save.begin)}});
  clean_up(manifest);
  return absl::OkStatus();
}

// Removes old checkpoints. The step is already safe: the next save or start does what fails now.
void Saver::clean_up(const Manifest& manifest) {
  const auto doing = session_.doing("remove old checkpoints");
  StepStore& step_store = session_.step_store;
  step_store.note_committed(manifest.step, manifest.full);
  absl::Status kept = step_store.clean_step(manifest);
  if (kept.ok()) kept = step_store.purge(session_.setup.config.keep_latest_k);
  if (!kept.ok() && !storage::is_fenced(kept)) {
    session_.emit(event::kWarning, {{"message", absl::StrCat("old checkpoints stay: ", std::string(kept.message()))}});
  }
}

}  // namespace titan::checkpoint
