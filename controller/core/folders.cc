// A dump folder has at most one live job, under every name of the folder: its paths, and the id stored in it.

#include "controller/core/folders.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

std::vector<std::string> names_of(const job::SchedulingSpec& spec) {
  std::vector<std::string> names{spec.dump_folder};
  if (!spec.real_folder.empty()) names.push_back(spec.real_folder);
  if (!spec.folder_id.empty()) names.push_back(spec.folder_id);
  return names;
}

// Names a folder's owner in messages: "projects/p/jobs/a under the name /dump/a". A job of another project is not
// named, since the submitter may not see it.
std::string holder_text(const job::JobRecord& holder, const job::SchedulingSpec& asks) {
  if (holder.spec.project != asks.project) return scheduler::kForeignJob;
  if (holder.spec.dump_folder == asks.dump_folder) return holder.name;
  return absl::StrCat(holder.name, " under the name ", holder.spec.dump_folder);
}

}  // namespace

void Folders::claim(const job::JobRecord& job) {
  for (const std::string& name : names_of(job.spec)) uids_.try_emplace(name, job.uid);
  if (!job.folder_id.empty()) uids_[job.folder_id] = job.uid;
}

void Folders::drop(const std::string& uid) {
  absl::erase_if(uids_, [&](const auto& item) { return item.second == uid; });
}

const std::string* Folders::holder(const job::SchedulingSpec& spec) const {
  for (const std::string& name : names_of(spec)) {
    if (const std::string* uid = find(name)) return uid;
  }
  return nullptr;
}

const std::string* Folders::holder_of_id(const std::string& id) const { return find(id); }

const std::string* Folders::find(const std::string& name) const {
  const auto found = uids_.find(name);
  return found == uids_.end() ? nullptr : &found->second;
}

absl::Status check_folder(const State& state, const job::SchedulingSpec& spec) {
  const std::string* uid = state.folders.holder(spec);
  if (uid == nullptr) return absl::OkStatus();
  const LiveJob* live = state.jobs.find(*uid);
  const job::JobRecord* record = live == nullptr ? nullptr : &live->record;
  const std::string holder = record == nullptr ? "a job that is just being created" : holder_text(*record, spec);
  std::vector<std::pair<std::string, std::string>> metadata{{"dump_folder", spec.dump_folder}};
  if (record != nullptr && record->spec.project == spec.project) metadata.emplace_back("job", record->name);
  const bool leaves = record != nullptr && state.left.is_leaving(record->uid);
  const std::string why =
      leaves ? absl::StrCat(", of which ", where_left(state, *live), "; wait, or choose another folder")
             : ", which is not over; cancel it or choose another folder";
  return rpc::error(absl::StatusCode::kFailedPrecondition, "DUMP_FOLDER_IN_USE",
                    absl::StrCat("job.dump_folder ", spec.dump_folder, " belongs to ", holder, why), metadata);
}

// The job's nodes see two folders. If nothing was trained under the id, the leader's report of it counts no more than
// the others'.
void doubt_folder_id(Folders& folders, LiveJob& job) {
  const job::RestartHistory& history = job.record.history;
  if (history.best_step > 0 || history.best_commit > 0) return;
  folders.drop(job.record.uid);
  job.record.folder_id.clear();
  folders.claim(job.record);
}

// The leader's node reports which folder it prepared.
bool take_folder_id(Step& step, LiveJob& job, const std::string& node, const std::string& id, Change& change) {
  if (job.record.folder_id == id) return true;
  if (job.attempt->failing) return false;
  const auto refused = [&](const char* reason, std::string message) {
    add_refusal(job, {node, reason, std::move(message)}, change);
    return false;
  };
  const std::string& folder = job.record.spec.dump_folder;
  if (!job.record.folder_id.empty()) {  // A worker of an older version does not check.
    return refused("DUMP_FOLDER_REPLACED",
                   absl::StrCat("the dump folder ", folder, " is not the one of the job's earlier ",
                                "attempts; mount or restore that one, or submit the job again"));
  }
  const std::string* other = step.state.folders.holder_of_id(id);
  if (other != nullptr && *other != job.record.uid) {
    LiveJob* live = step.state.jobs.find(*other);
    const bool first = live != nullptr && (live->record.folder_id == id || live->record.order < job.record.order);
    if (first) {
      return refused(
          "DUMP_FOLDER_IN_USE",
          absl::StrCat("the dump folder ", folder, " belongs to ", holder_text(live->record, job.record.spec),
                       ", which is not over; cancel it or choose another folder. If this one is a copy, delete ",
                       ".titan-folder and fence.json in it"));
    }
  }
  if (const std::string& seen = job.record.spec.folder_id; !seen.empty() && seen != id) {
    add_event(step, change, job,
              {.node = node,
               .attempt = job.attempt->record.number,
               .reason = "DumpFolderDiffers",
               .message = absl::StrCat("node ", node, " has another folder at ", folder,
                                       " than the machine that submitted the job: a mount may be missing"),
               .severity = "warning"});
  }
  job.record.folder_id = id;
  step.state.folders.claim(job.record);
  put_job(change, job);
  return true;
}

}  // namespace titan::core
