#include "worker/checkpoint/saver.h"

#include "absl/strings/str_cat.h"
#include "common/clock/clock.h"
#include "common/rank_protocol/launch.h"
#include "common/status/status.h"
#include "worker/checkpoint/hf_save.h"
#include "worker/checkpoint/verdict.h"

namespace titan::checkpoint {
namespace {

namespace event = rank_protocol::event;
using nlohmann::json;

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

absl::Status Saver::save(int64_t step, const std::vector<Slice>& slices, TrainState state, Kind kind) {
  TITAN_RETURN_IF_ERROR(wait());
  if (kind == Kind::kFull && last_committed_ == step) return absl::OkStatus();  // The same state: already safe.
  Save save{.topic = session_.next_topic("save"),
            .step = step,
            .kind = kind,
            .state = std::move(state),
            .begin = system_clock().monotonic()};
  if (session_.setup.config.async_mode == "disabled") {
    stage(slices, kind, std::nullopt, /*copy=*/false, save.parts);
    return settle(save, run(save));
  }
  stage(slices, kind, std::nullopt, /*copy=*/true, buffers_);
  save.parts = buffers_;
  if (session_.leader()) session_.emit(event::kStaged, {{"step", step}});
  running_ = true;
  writer_ = std::thread([this, save = std::move(save)] {
    written_ = settle(save, run(save));
    running_ = false;
  });
  return absl::OkStatus();
}

absl::Status Saver::save_last(int64_t step, const std::vector<Slice>& slices, TrainState state) {
  TITAN_RETURN_IF_ERROR(wait());
  const config::Checkpoint& config = session_.setup.config;
  Save save{.topic = session_.next_topic("last"),
            .step = step,
            .kind = config.last_save_model_only ? Kind::kModel : Kind::kFull,
            .state = std::move(state),
            .begin = system_clock().monotonic()};
  // A Hugging Face export casts when it makes its files; a full checkpoint keeps every type.
  const bool cast = save.kind == Kind::kModel && !config.last_save_in_hf;
  stage(slices, save.kind, cast ? std::optional(export_type(config)) : std::nullopt, /*copy=*/false, save.parts);
  const absl::Status status = config.last_save_in_hf ? save_as_hugging_face(session_, save) : run(save);
  settle(save, status).IgnoreError();  // For the event.
  return status;
}

// The rule for failed saves: what the caller of save() or wait() gets to see.
absl::Status Saver::settle(const Save& save, absl::Status status) {
  if (status.ok()) {
    failures_ = 0;
    if (save.kind == Kind::kFull) last_committed_ = save.step;
    return status;
  }
  if (storage::is_fenced(status)) return fenced_ = status;
  if (session_.leader() && !absl::IsCancelled(status)) {
    session_.emit(event::kCheckpointFailed, {{"step", save.step}, {"reason", std::string(status.message())}});
  }
  if (absl::IsUnavailable(status)) return status;  // There is nobody to go on training with.
  ++failures_;
  const int64_t allowed = session_.setup.failed_saves_allowed;
  return allowed > 0 && failures_ >= allowed ? status : absl::OkStatus();
}

// All ranks write, report, and hear the verdict. On a failure every rank removes what it wrote.
absl::Status Saver::run(const Save& save) {
  if (save.kind == Kind::kModel) {
    TITAN_ASSIGN_OR_RETURN(const bool full, already_full(save));
    if (full) {
      if (session_.leader()) {
        session_.emit(event::kWarning,
                      {{"message", absl::StrCat("step ", save.step,
                                                " is already there in full; its model-only save is left out")}});
      }
      return absl::OkStatus();
    }
  }
  const Setup& setup = session_.setup;
  const std::string path = step_path(session_.folder, save.step);
  absl::StatusOr<ShardReport> shard(absl::UnknownError("not written"));
  if (const absl::Status made = session_.files.make_folders(path); made.ok()) {
    shard = caught([&] {
      return write_shard(session_.files, path, {setup.attempt, setup.rank}, save.parts, &session_.stop);
    });
  } else {
    shard = made;
  }
  if (shard.ok()) shard->per_rank = save.state.per_rank;
  const absl::StatusOr<std::vector<std::string>> reports =
      session_.exchange.gather(save.topic, shard_report(shard).dump());
  absl::Status published = reports.status();
  bool discard = false;
  if (session_.leader() && published.ok()) published = not_a_lost_rank(publish(save, *reports, discard));
  json words = to_json(published);
  words["discard"] = discard;
  TITAN_ASSIGN_OR_RETURN(const std::string heard, session_.exchange.broadcast(save.topic + "/verdict", words.dump()));
  const json verdict = json::parse(heard, nullptr, false);
  // Only on rank 0's word: a manifest may name the shard although this rank never heard that it was published.
  if (verdict.value("discard", false) && shard.ok() && shard->has_file) {
    session_.files.remove(storage::join_path(path, shard->file.name))
        .IgnoreError();  // Else the next start's cleaning finds it.
  }
  return status_from_json(verdict);
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

// `discard`: it failed, and for certain no manifest names the new shards.
absl::Status Saver::publish(const Save& save, const std::vector<std::string>& reports, bool& discard) {
  discard = true;
  TITAN_ASSIGN_OR_RETURN(const std::vector<ShardReport> shards, parse_reports(reports));
  const Setup& setup = session_.setup;
  Manifest manifest = session_.manifest(save.step, save.kind);
  manifest.train_state = save.state.shared;
  TITAN_RETURN_IF_ERROR(merge(shards, manifest));
  storage::Files& files = session_.files;
  const std::string text = to_text(manifest);
  TITAN_RETURN_IF_ERROR(files.sync_folder(session_.folder));
  TITAN_RETURN_IF_ERROR(files.sync_folder(setup.dump_folder));
  const std::string path = storage::join_path(step_path(session_.folder, save.step), kManifestName);
  TITAN_RETURN_IF_ERROR(session_.fence.publish(setup.job_uid, setup.attempt, [&] {
    absl::Status written = storage::atomic_write(files, path, text);
    // The rename may have happened although its folder could not be synced.
    if (!written.ok()) discard = !files.exists(path) || storage::read_file(files, path).value_or(text) != text;
    return written;
  }));
  discard = false;
  session_.emit(event::kCommitted, {{"step", save.step},
                                    {"full", manifest.full},
                                    {"seconds", absl::ToDoubleSeconds(system_clock().monotonic() - save.begin)}});
  keep_house(manifest);
  return absl::OkStatus();
}

// The step is safe; what housekeeping cannot do now, the next save or start does.
void Saver::keep_house(const Manifest& manifest) {
  Janitor& janitor = session_.janitor;
  janitor.note_committed(manifest.step, manifest.full);
  absl::Status kept = janitor.clean_step(manifest);
  if (kept.ok()) kept = janitor.purge(session_.setup.config.keep_latest_k);
  if (!kept.ok() && !storage::is_fenced(kept)) {
    session_.emit(event::kWarning, {{"message", absl::StrCat("old checkpoints stay: ", std::string(kept.message()))}});
  }
}

json shard_report(const absl::StatusOr<ShardReport>& shard) {
  json report = to_json(not_a_lost_rank(shard.status()));
  if (shard.ok()) report["shard"] = to_json(*shard);
  return report;
}

absl::StatusOr<std::vector<ShardReport>> parse_reports(const std::vector<std::string>& reports) {
  std::vector<ShardReport> shards;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const json from = json::parse(reports[rank], nullptr, false);
    const absl::Status status = status_from_json(from);
    if (!status.ok()) return reports.size() > 1 ? annotate(status, absl::StrCat("rank ", rank)) : status;
    TITAN_ASSIGN_OR_RETURN(ShardReport shard, report_from_json(from.at("shard")));
    shards.push_back(std::move(shard));
  }
  return shards;
}

}  // namespace titan::checkpoint
