#include "worker/rank/tools/prune.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_fence.h"
#include "common/io/s3/object_files.h"
#include "common/io/storage/fence.h"
#include "common/io/storage/fence_record.h"
#include "common/io/storage/process_identity.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/policy.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // Most names here are from checkpoint.
using storage::Fence;

// Steps to remove and steps to keep.
struct Plan {
  std::vector<int64_t> doomed;
  std::map<int64_t, std::string> kept;  // With the reason, unless it is that the step is new.
};

bool is_step(const StepFolder& step) { return step.has_manifest || step.has_hf_index || step.has_dcp; }

// Returns the newest full step that is intact, or the newest intact export if there are no full ones. -1 if the folder
// has no manifest, so that nothing can be lost. DataLoss if it has some, but no step is intact.
absl::StatusOr<int64_t> newest_good(storage::Files& files, const std::vector<StepFolder>& steps, std::ostream& out) {
  bool any_full = false, any = false;
  absl::Status worst;
  for (const bool full : {true, false}) {
    for (auto step = steps.rbegin(); step != steps.rend() && !(any_full && !full); ++step) {
      if (!step->has_manifest) continue;
      any = true;
      const auto reader = StepReader::open(files, step->path);
      std::vector<absl::Status> problems;
      if (!reader.ok()) problems.push_back(reader.status());
      if (reader.ok() && (*reader)->manifest().full != full) continue;
      any_full |= reader.ok() && full;
      if (problems.empty()) problems = (*reader)->verify();
      if (problems.empty()) return step->step;
      if (full) out << step->path << ": damaged: " << std::string(problems.front().message()) << std::endl;
      worst = problems.front();
    }
  }
  if (!any) return -1;
  return annotate(absl::DataLossError(worst.message()), "no step is intact, so nothing is removed");
}

Plan plan_of(const std::vector<StepFolder>& steps, const PruneOptions& options, int64_t good,
             const std::set<int64_t>& committed) {
  std::vector<StoredStep> stored;
  for (const StepFolder& step : steps) {
    if (is_step(step)) stored.push_back({.step = step.step, .full = step.step == good});
  }
  Plan plan;
  for (const int64_t step : steps_to_purge(std::move(stored), options.keep)) {
    if (options.keep_every > 0 && step % options.keep_every == 0) {
      plan.kept[step] = absl::StrCat("every ", options.keep_every);
    } else if (committed.contains(step)) {
      plan.kept[step] = "the newest that its job committed";
    } else {
      plan.doomed.push_back(step);
    }
  }
  return plan;
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::weakly_canonical(path, error);
  return (error || found.has_filename() ? found : found.parent_path()).string();
}

// Returns the dump folder of a step's job if that job wrote to this folder. A checkpoint.folder may be anywhere, and a
// copy of one belongs to no job.
std::string dump_folder_in(storage::Files& files, const StepFolder& step, const std::string& folder) {
  if (!step.has_manifest) return "";
  const auto reader = StepReader::open(files, step.path);
  const nlohmann::json config = reader.ok() ? (*reader)->manifest().config : nlohmann::json();
  const auto text = [&](const char* table, const char* key) {
    const nlohmann::json in = config.is_object() ? config.value(table, nlohmann::json()) : nlohmann::json();
    const nlohmann::json value = in.is_object() ? in.value(key, nlohmann::json()) : nlohmann::json();
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  const std::string dump = text("job", "dump_folder");
  return absolute(storage::join_path(dump, text("checkpoint", "folder"))) == absolute(folder) ? dump : "";
}

// Returns the dump folders of jobs that may use `folder`.
std::set<std::string> dump_folders(storage::Files& files, const std::string& folder,
                                   const std::vector<StepFolder>& steps, const PruneOptions& options) {
  std::set<std::string> found;
  const auto add = [&](const std::string& dump) {
    if (!dump.empty() && files.exists(storage::join_path(dump, storage::kFenceFile))) found.insert(absolute(dump));
  };
  add(options.dump_folder);
  for (std::filesystem::path above = absolute(folder);; above = above.parent_path()) {
    add(above.string());
    if (above == above.parent_path()) break;
  }
  for (const StepFolder& step : steps) add(dump_folder_in(files, step, folder));
  return found;
}

void remember(const Fence::Holder& holder, const std::string& dump, const std::string& folder,
              std::set<int64_t>& committed) {
  for (const auto& [name, last] : holder.committed) {
    if (absolute(storage::join_path(dump, name)) == absolute(folder)) committed.insert(last.step);
  }
}

// Runs `effect` while none of the dump folders is in use by a job.
absl::Status while_all_idle(storage::Files& files, const std::string& folder, std::vector<std::string> dumps,
                            std::set<int64_t>& committed, absl::FunctionRef<absl::Status()> effect) {
  if (dumps.empty()) return effect();
  const std::string dump = dumps.back();
  dumps.pop_back();
  return storage::while_idle(files, dump, [&](const Fence::Holder& holder) {
    remember(holder, dump, folder, committed);
    return while_all_idle(files, folder, dumps, committed, effect);
  });
}

// Reports which steps are kept and removed.
class PruneReport {
 public:
  PruneReport(std::ostream& out, const PruneOptions& options) : out_(out), options_(options) {}

  void keeps(const StepFolder& step, const std::string& why) {
    out_ << step.path << ": kept" << (why.empty() ? "" : " (" + why + ")") << "\n";
  }
  void removes(const StepFolder& step) {
    out_ << step.path << ": " << (options_.dry_run ? "would be removed" : "removed") << std::endl;
    ++removed_;
  }
  void sum() const {
    out_ << counted(removed_, "step") << (options_.dry_run ? " would be removed" : " removed") << std::endl;
  }

 private:
  std::ostream& out_;
  const PruneOptions& options_;
  size_t removed_ = 0;
};

void report_kept(const std::vector<StepFolder>& steps, const Plan& plan, int64_t good, PruneReport& report) {
  for (const StepFolder& step : steps) {
    if (!is_step(step) || std::find(plan.doomed.begin(), plan.doomed.end(), step.step) != plan.doomed.end()) continue;
    const auto why = plan.kept.find(step.step);
    report.keeps(step, step.step == good ? "the newest intact step" : why == plan.kept.end() ? "" : why->second);
  }
}

// Renames the step so that readers no longer see it. Returns false if it is being read.
absl::StatusOr<bool> retire(storage::Files& files, const std::string& folder, const StepFolder& step,
                            std::vector<std::string>& purged) {
  std::unique_ptr<storage::FileLock> lock;
  if (step.has_manifest) {
    auto locked = files.try_lock(storage::join_path(step.path, kManifestName), storage::LockMode::kExclusive);
    if (absl::IsUnavailable(locked.status())) return false;
    if (locked.ok()) lock = *std::move(locked);
  }
  purged.push_back(storage::join_path(folder, absl::StrCat(kPurgedPrefix, "by-hand-step-", step.step)));
  TITAN_RETURN_IF_ERROR(files.remove_folder(purged.back()));  // Remains of an earlier crash.
  TITAN_RETURN_IF_ERROR(files.rename(step.path, purged.back()));
  return true;
}

absl::Status prune_files(storage::Files& files, const std::string& folder, const PruneOptions& options,
                         std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(std::vector<StepFolder> steps, list_steps(files, folder));
  const std::set<std::string> found = dump_folders(files, folder, steps, options);
  const std::vector<std::string> dumps(found.begin(), found.end());
  std::set<int64_t> committed;
  // Checked before the slow part, and again later.
  TITAN_RETURN_IF_ERROR(while_all_idle(files, folder, dumps, committed, [] { return absl::OkStatus(); }));
  TITAN_ASSIGN_OR_RETURN(const int64_t good, newest_good(files, steps, out));
  PruneReport report(out, options);
  std::vector<std::string> purged;
  const absl::Status status = while_all_idle(files, folder, dumps, committed, [&]() -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(steps, list_steps(files, folder));
    const Plan plan = plan_of(steps, options, good, committed);
    report_kept(steps, plan, good, report);
    for (const StepFolder& step : steps) {
      if (std::find(plan.doomed.begin(), plan.doomed.end(), step.step) == plan.doomed.end()) continue;
      if (!options.dry_run) {
        TITAN_ASSIGN_OR_RETURN(const bool gone, retire(files, folder, step, purged));
        if (!gone) {
          report.keeps(step, "it is being read");
          continue;
        }
      }
      report.removes(step);
    }
    if (options.dry_run) return absl::OkStatus();
    // Remains of an earlier run or of a job.
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
    for (const std::string& name : names) {
      if (absl::StartsWith(name, kPurgedPrefix)) purged.push_back(storage::join_path(folder, name));
    }
    return files.sync_folder(folder);
  });
  for (const std::string& path : purged) TITAN_RETURN_IF_ERROR(files.remove_folder(path));
  TITAN_RETURN_IF_ERROR(status);
  report.sum();
  return absl::OkStatus();
}

// A folder of objects without a job. While it is pruned it is held in the name of its last holder, so that new jobs
// wait, or its own job takes it back.
class IdleObjects {
 public:
  IdleObjects(std::shared_ptr<s3::S3Client> client, std::string key)
      : fence_(client, key), client_(client), key_(key) {}
  ~IdleObjects() {
    if (held_) fence_.release().IgnoreError();
  }

  absl::StatusOr<Fence::Holder> look() {
    TITAN_ASSIGN_OR_RETURN(Fence::Holder holder, fence_.holder());
    if (holder.job_uid.empty() || holder.released || storage::process_has_ended(holder.process)) return holder;
    const auto beat = client_->head(absl::StrCat(key_, key_.empty() ? "" : "/", storage::kFenceAlive));
    if (absl::IsNotFound(beat.status())) return holder;
    if (!beat.ok()) return beat.status();
    if (beat->now - beat->modified >= s3::kObjectHeartbeatTimeout && beat->modified != absl::InfinitePast())
      return holder;
    return storage::in_use_status("the checkpoint folder " + client_->place(key_), holder, "a folder that no job uses");
  }

  absl::Status take(const Fence::Holder& last) {
    Fence::Taken taken;
    const bool nobody = last.job_uid.empty();
    // A silent holder that wakes is fenced by the next attempt's number, which its job then uses itself.
    const int attempt = nobody ? 1 : last.attempt + (last.released ? 0 : 1);
    TITAN_RETURN_IF_ERROR(fence_.raise({.job_uid = nobody ? "titan-checkpoint" : last.job_uid,
                                        .attempt = attempt,
                                        .job = nobody ? "titan-checkpoint prune" : last.job,
                                        .host = last.host,
                                        .pid = last.pid,
                                        .process = storage::process_identity()},
                                       taken));
    fence_.start_heartbeat();
    held_ = true;
    return absl::OkStatus();
  }

  absl::Status remove(const std::vector<std::string>& prefixes) {
    std::vector<std::string> manifests, rest;
    for (const std::string& prefix : prefixes) {
      TITAN_ASSIGN_OR_RETURN(const s3::Listing all, client_->list(prefix, /*deep=*/true));
      for (const s3::Object& object : all.objects) {
        (object.key == prefix + kManifestName ? manifests : rest).push_back(object.key);
      }
    }
    TITAN_RETURN_IF_ERROR(fence_.retire(manifests));
    for (const std::string& key : rest) TITAN_RETURN_IF_ERROR(client_->remove(key));
    return absl::OkStatus();
  }

 private:
  s3::ObjectFence fence_;
  const std::shared_ptr<s3::S3Client> client_;
  const std::string key_;
  bool held_ = false;
};

absl::Status prune_objects(storage::Files& files, const std::string& folder, const PruneOptions& options,
                           std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const s3::Location location, s3::parse_location(folder));
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<s3::S3Client> client, s3::client_of(folder));
  IdleObjects objects(client, location.key);
  TITAN_ASSIGN_OR_RETURN(const Fence::Holder before, objects.look());
  TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> steps, list_steps(files, folder));
  TITAN_ASSIGN_OR_RETURN(const int64_t good, newest_good(files, steps, out));
  std::set<int64_t> committed;
  for (const auto& [name, last] : before.committed) committed.insert(last.step);
  const Plan plan = plan_of(steps, options, good, committed);
  PruneReport report(out, options);
  report_kept(steps, plan, good, report);
  const std::string prefix = location.key.empty() ? "" : location.key + "/";
  std::vector<std::string> doomed;
  for (const int64_t step : plan.doomed) doomed.push_back(absl::StrCat(prefix, "step-", step, "/"));
  if (!options.dry_run && !doomed.empty()) {
    // A job may have run in the meantime. The steps that it committed are newer.
    TITAN_ASSIGN_OR_RETURN(const Fence::Holder last, objects.look());
    TITAN_RETURN_IF_ERROR(objects.take(last));
    TITAN_RETURN_IF_ERROR(objects.remove(doomed));
  }
  for (const StepFolder& step : steps) {
    if (std::find(plan.doomed.begin(), plan.doomed.end(), step.step) != plan.doomed.end()) report.removes(step);
  }
  report.sum();
  return absl::OkStatus();
}

}  // namespace

absl::Status prune(storage::Files& files, const std::string& folder, const PruneOptions& options, std::ostream& out) {
  if (options.keep < 1) return absl::InvalidArgumentError("--keep must be 1 or more");
  TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> steps, list_steps(files, folder));
  if (std::none_of(steps.begin(), steps.end(), is_step)) {
    return absl::NotFoundError(absl::StrCat(folder, ": holds no step-N; name the folder of all steps"));
  }
  return s3::is_location(folder) ? prune_objects(files, folder, options, out)
                                 : prune_files(files, folder, options, out);
}

}  // namespace titan::tools
