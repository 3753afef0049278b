// One live job a dump folder, under every name that the folder has: its paths, and the id that lies in it.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/core/core.h"

namespace titan::core {
namespace {

// Keys of dump_folders_. Ids are no paths, so they cannot meet.
std::vector<std::string> names_of(const job::Spec& spec) {
  std::vector<std::string> names{spec.dump_folder};
  if (!spec.real_folder.empty()) names.push_back(spec.real_folder);
  if (!spec.folder_id.empty()) names.push_back(spec.folder_id);
  return names;
}

// "projects/p/jobs/a under the name /dump/a" for messages. Of another project's job neither: who submits here may not
// see it there.
std::string holder_text(const job::JobRecord& holder, const job::Spec& asks) {
  if (holder.spec.project != asks.project) return scheduler::kForeignJob;
  if (holder.spec.dump_folder == asks.dump_folder) return holder.name;
  return absl::StrCat(holder.name, " under the name ", holder.spec.dump_folder);
}

}  // namespace

absl::Status Core::check_folder(const job::Spec& spec) const {
  for (const std::string& name : names_of(spec)) {
    const auto other = dump_folders_.find(name);
    if (other == dump_folders_.end()) continue;
    const auto live = jobs_.find(other->second);
    const job::JobRecord* record = live == jobs_.end() ? nullptr : &live->second.record;
    const std::string holder = record == nullptr ? "a job that is just being created" : holder_text(*record, spec);
    std::vector<std::pair<std::string, std::string>> metadata{{"dump_folder", spec.dump_folder}};
    if (record != nullptr && record->spec.project == spec.project) metadata.emplace_back("job", record->name);
    const bool leaves = record != nullptr && leaving_.contains(record->uid);
    const std::string why =
        leaves ? absl::StrCat(", of which ", where_left(live->second), "; wait, or choose another folder")
               : ", which is not over; cancel it or choose another folder";
    return rpc::error(absl::StatusCode::kFailedPrecondition, "DUMP_FOLDER_IN_USE",
                      absl::StrCat("job.dump_folder ", spec.dump_folder, " belongs to ", holder, why), metadata);
  }
  return absl::OkStatus();
}

void Core::claim_folder(const job::JobRecord& record) {
  for (const std::string& name : names_of(record.spec)) dump_folders_.try_emplace(name, record.uid);
  if (!record.folder_id.empty()) dump_folders_[record.folder_id] = record.uid;  // Seen, not only said.
}

void Core::drop_folder(const job::JobRecord& record) {
  absl::erase_if(dump_folders_, [&](const auto& item) { return item.second == record.uid; });
}

// Its nodes see two folders. Under one id something was trained, or the leader's word is no better than the others'.
void Core::doubt_folder_id(LiveJob& job) {
  const job::RestartHistory& history = job.record.history;
  if (history.best_step > 0 || history.best_commit > 0) return;
  drop_folder(job.record);
  job.record.folder_id.clear();
  claim_folder(job.record);
}

// The leader's node says which folder it prepared. False: the attempt must not start there.
bool Core::take_folder_id(LiveJob& job, const std::string& node, const std::string& id, Change& change) {
  if (job.record.folder_id == id) return true;
  if (job.attempt->failing) return false;
  const auto refuse = [&](const char* reason, std::string message) {
    add_refusal(job, {node, reason, std::move(message)}, change);
    return false;
  };
  const std::string& folder = job.record.spec.dump_folder;
  if (!job.record.folder_id.empty()) {  // A worker of an older version does not look.
    return refuse("DUMP_FOLDER_REPLACED",
                  absl::StrCat("the dump folder ", folder, " is not the one of the job's earlier ",
                               "attempts; mount or restore that one, or submit the job anew"));
  }
  const auto other = dump_folders_.find(id);
  if (other != dump_folders_.end() && other->second != job.record.uid) {
    const auto live = jobs_.find(other->second);
    const bool first =
        live != jobs_.end() && (live->second.record.folder_id == id || live->second.record.order < job.record.order);
    if (first) {
      return refuse(
          "DUMP_FOLDER_IN_USE",
          absl::StrCat("the dump folder ", folder, " belongs to ", holder_text(live->second.record, job.record.spec),
                       ", which is not over; cancel it or choose another folder. If this one is a copy, delete ",
                       ".titan-folder and fence.json in it"));
    }
  }
  if (const std::string& seen = job.record.spec.folder_id; !seen.empty() && seen != id) {
    add_event(change, job,
              {.node = node,
               .attempt = job.attempt->record.number,
               .reason = "DumpFolderDiffers",
               .message = absl::StrCat("node ", node, " has another folder at ", folder,
                                       " than the machine that submitted the job: a mount may be missing"),
               .severity = "warning"});
  }
  job.record.folder_id = id;
  claim_folder(job.record);
  put_job(change, job);
  return true;
}

}  // namespace titan::core
