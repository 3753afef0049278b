#include "worker/rank/checkpoint/saving/hf_save.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock/clock.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/rank_protocol/launch.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/saving/saver.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"

namespace titan::checkpoint {
namespace {

namespace event = rank_protocol::event;
using nlohmann::json;

// Joins the words of several ranks about their files: all files, or the first error.
std::string join_files(const std::vector<std::string>& words) {
  json joined = to_json(absl::OkStatus());
  joined["written"] = json::object();
  for (const std::string& one : words) {
    const json from = json::parse(one, nullptr, false);
    if (!status_from_json(from).ok()) return one;
    joined["written"].update(from.at("written"));
  }
  return joined.dump();
}

class HfSave {
 public:
  // `salt`: part of the files' names in a store, where nothing is renamed; empty for a file system.
  HfSave(Session& session, const Save& save, std::string staging, std::string salt)
      : session_(session), save_(save), staging_(std::move(staging)), salt_(std::move(salt)) {}

  absl::Status run() {
    TITAN_RETURN_IF_ERROR(write_slices());
    const absl::StatusOr<std::string> reports = write_files();
    absl::Status verdict = reports.status();
    bool discard = true;
    if (session_.leader() && verdict.ok()) verdict = as_local_error(publish(*reports, discard));
    json words = to_json(verdict);
    words["discard"] = discard && !verdict.ok();
    TITAN_ASSIGN_OR_RETURN(const std::string heard,
                           session_.exchange.broadcast(save_.topic + "/files/verdict", words.dump()));
    const json all = json::parse(heard, nullptr, false);
    if (all.value("discard", false)) remove_mine();
    return status_from_json(all);
  }

 private:
  // Saves all slices, with a manifest that no other reader looks for.
  absl::Status write_slices() {
    const Setup& setup = session_.setup;
    absl::StatusOr<WrittenShard> shard(absl::UnknownError("not written"));
    if (const absl::Status made = session_.files.make_folders(staging_); made.ok()) {
      shard = caught([&] {
        const auto doing = session_.doing("write shard");
        return write_shard(session_.files, staging_, {setup.attempt, setup.rank}, save_.parts, &session_.stop);
      });
    } else {
      shard = made;
    }
    const absl::StatusOr<std::string> reports = session_.shards.gather(save_.topic + "/slices", shard, nullptr);
    absl::Status verdict = reports.status();
    if (session_.leader() && verdict.ok()) verdict = as_local_error(write_manifest(*reports));
    return session_.conclude(save_.topic + "/slices/verdict", verdict);
  }

  absl::Status write_manifest(const std::string& words) {
    Manifest manifest = session_.manifest(save_.step, CheckpointKind::kModel);
    TITAN_RETURN_IF_ERROR(session_.shards.complete(words, manifest));
    return storage::atomic_write(session_.files, storage::join_path(staging_, kManifestName), to_text(manifest));
  }

  // Makes this rank's share of the files.
  absl::StatusOr<std::string> write_files() {
    const Setup& setup = session_.setup;
    json written = json::object();
    const auto make_files = [&]() -> absl::Status {
      const auto doing = session_.doing("write Hugging Face files");
      TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(session_.files, staging_));
      TITAN_ASSIGN_OR_RETURN(plan_, plan_export(reader->manifest(), *setup.hf, options_));
      if (session_.leader()) TITAN_RETURN_IF_ERROR(warn_of_left_out(*reader));
      for (HfFile& file : plan_) file.name = salted(file.name);
      for (size_t i = static_cast<size_t>(setup.rank); i < plan_.size(); i += static_cast<size_t>(setup.world)) {
        TITAN_ASSIGN_OR_RETURN(const HfWritten one,
                               write_export_file(session_.files, *reader, *setup.hf, plan_[i], options_, folder(),
                                                 plan_[i].name, &session_.stop));
        mine_.push_back(storage::join_path(folder(), plan_[i].name));
        written[absl::StrCat(i)] = {{"keys", one.keys}, {"bytes", one.bytes}};
        warn_of(one.warnings);
      }
      return absl::OkStatus();
    };
    json report = to_json(session_.exchange.named(as_local_error(caught(make_files))));
    report["written"] = written;
    return session_.exchange.gather(save_.topic + "/files", report.dump(), join_files);
  }

  bool in_store() const { return !salt_.empty(); }
  // Returns the folder in which the files are written: in a store, the one in which they stay.
  std::string folder() const { return in_store() ? step_path(session_.folder, save_.step) : staging_; }
  // Returns, in a store, a name that was never used: "model-SALT-00001-of-00003.safetensors".
  std::string salted(const std::string& name) const {
    return in_store() ? absl::StrCat("model-", salt_, name.substr(name.find('-'))) : name;
  }

  // Removes this rank's files. The next start's cleaning finds what cannot be removed now.
  void remove_mine() {
    if (!in_store()) return;  // They disappear with the staging folder.
    for (const std::string& path : mine_) session_.files.remove(path).IgnoreError();
  }

  absl::Status warn_of_left_out(StepReader& step) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> lines, unexported_buffers(step, *session_.setup.hf));
    warn_of(lines);
    return absl::OkStatus();
  }

  void warn_of(const std::vector<std::string>& lines) const {
    for (const std::string& line : lines) session_.emit(event::kWarning, {{"message", line}});
  }

  // Rank 0: moves the files into place, unless they are there already, and then the index.
  absl::Status publish(const std::string& words, bool& discard) {
    const Setup& setup = session_.setup;
    storage::Files& files = session_.files;
    std::vector<HfWritten> all(plan_.size());
    const json from = json::parse(words, nullptr, false);
    TITAN_RETURN_IF_ERROR(status_from_json(from));
    for (const auto& [index, file] : from.at("written").items()) {
      all.at(std::stoul(index)) = {.keys = file.at("keys").get<std::vector<std::string>>(),
                                   .bytes = file.at("bytes").get<int64_t>(),
                                   .warnings = {}};
    }
    const std::string path = step_path(session_.folder, save_.step);
    TITAN_RETURN_IF_ERROR(files.make_folders(path));
    TITAN_RETURN_IF_ERROR(files.sync_folder(session_.folder));
    const std::string index = hf_index(plan_, all);
    const auto place = [&]() -> absl::Status {
      for (const HfFile& file : plan_) {
        if (in_store()) break;
        TITAN_RETURN_IF_ERROR(
            files.rename(storage::join_path(staging_, file.name), storage::join_path(path, file.name)));
      }
      TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> missing,
                             write_config_and_assets(files, path, *setup.hf, options_));
      warn_of(missing);
      return write_second_index(files, path, *setup.hf, index);
    };
    TITAN_RETURN_IF_ERROR(session_.step_store.publish_export(save_.step, index, place, discard));
    session_.emit(event::kCommitted, {{"step", save_.step},
                                      {"full", false},
                                      {"seconds", absl::ToDoubleSeconds(system_clock().monotonic() - save_.begin)}});
    return absl::OkStatus();
  }

  Session& session_;
  const Save& save_;
  const std::string staging_, salt_;
  std::vector<std::string> mine_;  // Paths of the files that this rank wrote.
  // Training has ended, so a gap in the export is only a warning, and no value may be lost.
  const HfExport options_{.dtype = export_type(session_.setup.config),
                          .assets = {.folder = session_.setup.hf_assets_path},
                          .overflow = Overflow::kKeepFloat32};
  std::vector<HfFile> plan_;  // The same on every rank that could read the slices.
};

}  // namespace

absl::Status save_as_hugging_face(Session& session, const Save& save) {
  const Setup& setup = session.setup;
  if (setup.hf == nullptr)
    return absl::FailedPreconditionError("checkpoint.last_save_in_hf: this model has no Hugging Face names");
  std::string salt, staging = storage::join_path(
                        session.folder, absl::StrCat(kExportPrefix, "a", setup.attempt, "-", "step-", save.step));
  if (s3::is_location(session.folder)) {
    TITAN_ASSIGN_OR_RETURN(salt, session.exchange.broadcast(save.topic + "/salt", session.shard_name().salt));
    staging = storage::join_path(step_path(session.folder, save.step), absl::StrCat(kExportPrefix, salt));
  }
  absl::Status status = HfSave(session, save, staging, salt).run();
  if (session.leader()) session.files.remove_folder(staging).IgnoreError();
  return status;
}

}  // namespace titan::checkpoint
