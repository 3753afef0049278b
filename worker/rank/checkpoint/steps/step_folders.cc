#include "worker/rank/checkpoint/steps/step_folders.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"

namespace titan::checkpoint {
namespace {

constexpr char kStepPrefix[] = "step-";

bool is_number(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

// Returns whether storage::atomic_write() gives unfinished files such a name: "NAME.PID.COUNT.tmp".
bool is_temporary(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  const size_t size = parts.size();
  return size > 3 && parts[size - 1] == "tmp" && is_number(parts[size - 2]) && is_number(parts[size - 3]);
}

bool is_of_an_attempt(const std::string& name) { return is_shard(name) || is_temporary(name); }

// Finds out what the step's folder holds. In a store, a step that cannot be examined is an error, not a missing step.
absl::Status look_into(storage::Files& files, StepFolder& step) {
  if (!s3::is_location(step.path)) {
    step.has_manifest = files.exists(storage::join_path(step.path, kManifestName));
    step.has_hf_index = files.exists(storage::join_path(step.path, kHfIndexName));
    step.has_dcp = files.exists(storage::join_path(step.path, kDcpMetadataName));
    return absl::OkStatus();
  }
  const auto names = files.list(step.path);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  const auto has = [&](const char* name) { return std::binary_search(names->begin(), names->end(), name); };
  step.has_manifest = has(kManifestName);
  step.has_hf_index = has(kHfIndexName);
  step.has_dcp = has(kDcpMetadataName);
  return absl::OkStatus();
}

}  // namespace

// Accepts only the spelling that step_path() writes: not "step-007".
int64_t step_of(const std::string& name) {
  int64_t step = -1;
  if (!absl::StartsWith(name, kStepPrefix) || !absl::SimpleAtoi(name.substr(sizeof kStepPrefix - 1), &step)) return -1;
  return step >= 0 && name == absl::StrCat(kStepPrefix, step) ? step : -1;
}

bool is_shard(const std::string& name) {
  return name.size() > 1 && name[0] == 'a' && name[1] >= '0' && name[1] <= '9' && absl::EndsWith(name, ".safetensors");
}

std::string step_path(const std::string& folder, int64_t step) {
  return storage::join_path(folder, absl::StrCat(kStepPrefix, step));
}

absl::StatusOr<std::vector<StepFolder>> list_steps(storage::Files& files, const std::string& folder) {
  std::vector<StepFolder> steps;
  auto names = files.list(folder);
  if (absl::IsNotFound(names.status())) return steps;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const int64_t step = step_of(name);
    if (step < 0) continue;
    StepFolder found{.step = step, .path = storage::join_path(folder, name)};
    TITAN_RETURN_IF_ERROR(look_into(files, found));
    steps.push_back(std::move(found));
  }
  std::sort(steps.begin(), steps.end(), [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return steps;
}

StepStore::~StepStore() { wait(); }

void StepStore::wait() {
  if (deleter_.joinable()) deleter_.join();
}

absl::Status StepStore::retire(const std::vector<std::string>& names) {
  std::vector<std::string> doomed;
  absl::Status status;
  for (const std::string& name : names) {
    std::string target = storage::join_path(folder_, name);
    if (!absl::StartsWith(name, kPurgedPrefix)) {
      // The attempt in the name separates two attempts' purges of one step. A taken name is left from an earlier crash.
      target = storage::join_path(folder_, absl::StrCat(kPurgedPrefix, "a", attempt_, "-", name));
      if (files_.exists(target)) {
        if (status = files_.remove_folder(target); !status.ok()) break;
      }
      if (status = files_.rename(storage::join_path(folder_, name), target); !status.ok()) break;
    }
    doomed.push_back(std::move(target));
  }
  if (!doomed.empty()) {
    delete_in_background([this, doomed = std::move(doomed)] {
      for (const std::string& path : doomed) files_.remove_folder(path).IgnoreError();  // The next start tries again.
    });
  }
  return status;
}

void StepStore::delete_in_background(std::function<void()> deleting) {
  wait();
  deleter_ = std::thread(std::move(deleting));
}

absl::Status StepStore::publish(const Manifest& manifest, const std::string& text, const std::string& folder,
                                bool& discard) {
  const std::string path = storage::join_path(step_path(folder_, manifest.step), kManifestName);
  discard = true;
  const auto rename_manifest = [&] {
    absl::Status written = storage::atomic_write(files_, path, text);
    // The rename may have happened although its folder could not be synced.
    if (!written.ok()) discard = !files_.exists(path) || storage::read_file(files_, path).value_or(text) != text;
    return written;
  };
  TITAN_RETURN_IF_ERROR(manifest.full ? fence_.publish_step(job_uid_, attempt_, folder, manifest.step, rename_manifest)
                                      : fence_.publish(job_uid_, attempt_, rename_manifest));
  discard = false;
  return absl::OkStatus();
}

absl::Status StepStore::publish_export(int64_t step, const std::string& index, absl::FunctionRef<absl::Status()> place,
                                       bool& discard) {
  discard = false;  // The next try puts the same files in the same place.
  return fence_.publish(job_uid_, attempt_, [&]() -> absl::Status {
    TITAN_RETURN_IF_ERROR(place());
    return storage::atomic_write(files_, storage::join_path(step_path(folder_, step), kHfIndexName), index);
  });
}

// Removes what an attempt left next to the manifest when it died while saving this step again. Call it under the fence.
absl::Status StepStore::sweep(const StepFolder& step) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, files_.list(step.path));
  // Manifests of large jobs take long to read, and a start should not. So the manifest is read only if the names of the
  // files look odd.
  std::set<std::string> attempts;
  bool odd = false;
  for (const std::string& entry : entries) {
    odd |= is_temporary(entry) || (is_shard(entry) && std::count(entry.begin(), entry.end(), '.') > 1);
    if (is_shard(entry)) attempts.insert(entry.substr(0, entry.find('-')));
  }
  if (!odd && attempts.size() <= 1) return absl::OkStatus();
  const auto text = storage::read_file(files_, storage::join_path(step.path, kManifestName));
  const auto manifest = text.ok() ? manifest_from_text(*text) : text.status();
  if (!manifest.ok()) return absl::OkStatus();  // A damaged manifest does not justify deletions.
  std::set<std::string> named;
  for (const FileRecord& file : manifest->files) named.insert(file.name);
  for (const std::string& entry : entries) {
    if ((is_shard(entry) && !named.contains(entry)) || is_temporary(entry)) {
      TITAN_RETURN_IF_ERROR(files_.remove(storage::join_path(step.path, entry)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> StepStore::clean_leftovers() {
  std::vector<std::string> unknown;
  auto names = files_.list(folder_);
  if (absl::IsNotFound(names.status())) return unknown;
  if (!names.ok()) return names.status();
  TITAN_RETURN_IF_ERROR(fence_.publish(job_uid_, attempt_, [&]() -> absl::Status {
    std::vector<std::string> doomed;
    for (const std::string& name : *names) {
      if (absl::StartsWith(name, kPurgedPrefix) || absl::StartsWith(name, kExportPrefix)) doomed.push_back(name);
    }
    TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> steps, list_steps(files_, folder_));
    for (const StepFolder& step : steps) {
      if (step.has_manifest) TITAN_RETURN_IF_ERROR(sweep(step));
      if (step.has_manifest || step.has_hf_index || step.has_dcp) continue;
      TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, files_.list(step.path));
      const bool ours = std::all_of(entries.begin(), entries.end(), is_of_an_attempt);
      if (ours) doomed.push_back(absl::StrCat(kStepPrefix, step.step));
      if (!ours) unknown.push_back(step.path);
    }
    return retire(doomed);
  }));
  return unknown;
}

absl::Status StepStore::clean_step(const Manifest& manifest) {
  const std::string path = step_path(folder_, manifest.step);
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, files_.list(path));
  std::set<std::string> named;
  for (const FileRecord& file : manifest.files) named.insert(file.name);
  std::vector<std::string> doomed;
  for (const std::string& entry : entries) {
    if ((is_shard(entry) && !named.contains(entry)) || is_temporary(entry)) doomed.push_back(entry);
  }
  if (doomed.empty()) return absl::OkStatus();
  return fence_.publish(job_uid_, attempt_, [&]() -> absl::Status {
    for (const std::string& entry : doomed) TITAN_RETURN_IF_ERROR(files_.remove(storage::join_path(path, entry)));
    return absl::OkStatus();
  });
}

absl::Status StepStore::remove_if_empty(int64_t step) {
  const std::string path = step_path(folder_, step);
  return fence_.publish(job_uid_, attempt_, [&]() -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, files_.list(path));
    return entries.empty() ? files_.remove_folder(path) : absl::OkStatus();
  });
}

void StepStore::note_committed(int64_t step, bool full) {
  trust_[step] = StoredStep::kCommitted;
  full_[step] = full;
}

bool StepStore::is_full(const StepFolder& step) {
  if (!step.has_manifest) return false;
  if (const auto known = full_.find(step.step); known != full_.end()) return known->second;
  const auto text = storage::read_file(files_, storage::join_path(step.path, kManifestName));
  const auto manifest = text.ok() ? manifest_from_text(*text) : text.status();
  return full_[step.step] = manifest.ok() && manifest->full;
}

absl::StatusOr<std::vector<int64_t>> StepStore::stale_steps(int keep_latest_k) {
  if (keep_latest_k <= 0) return std::vector<int64_t>();
  TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> folders, list_steps(files_, folder_));
  std::vector<StoredStep> steps;
  for (const StepFolder& folder : folders) {
    const auto trust = trust_.find(folder.step);
    // Without a manifest, only an export of this attempt is known to be the job's.
    if (!folder.has_manifest && trust == trust_.end()) continue;
    steps.push_back({folder.step, is_full(folder), trust == trust_.end() ? StoredStep::kFound : trust->second});
  }
  return steps_to_purge(std::move(steps), keep_latest_k);
}

void StepStore::forget(int64_t step) {
  full_.erase(step);
  trust_.erase(step);
}

// If other programs' files lie next to a step, deletes only the step, its manifest first; otherwise returns false. Call
// it under the fence.
absl::StatusOr<bool> StepStore::remove_from_shared(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> entries, files_.list(path));
  if (std::binary_search(entries.begin(), entries.end(), kHfIndexName)) return false;
  const auto of_the_step = [](const std::string& name) { return name == kManifestName || is_of_an_attempt(name); };
  if (std::all_of(entries.begin(), entries.end(), of_the_step)) return false;
  TITAN_RETURN_IF_ERROR(files_.remove(storage::join_path(path, kManifestName)));
  for (const std::string& name : entries) {
    if (is_of_an_attempt(name)) TITAN_RETURN_IF_ERROR(files_.remove(storage::join_path(path, name)));
  }
  return true;
}

absl::Status StepStore::purge(int keep_latest_k) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<int64_t> doomed, stale_steps(keep_latest_k));
  if (doomed.empty()) return absl::OkStatus();
  return fence_.publish(job_uid_, attempt_, [&]() -> absl::Status {
    std::vector<std::string> names;
    std::vector<std::unique_ptr<storage::FileLock>> locks;  // Held until the rename is done.
    for (const int64_t step : doomed) {
      const std::string manifest = storage::join_path(step_path(folder_, step), kManifestName);
      auto lock = files_.try_lock(manifest, storage::LockMode::kExclusive);
      if (absl::IsUnavailable(lock.status())) continue;  // It is being read; the next purge tries again.
      if (lock.ok()) locks.push_back(*std::move(lock));
      TITAN_ASSIGN_OR_RETURN(const bool shared, remove_from_shared(step_path(folder_, step)));
      if (!shared) names.push_back(absl::StrCat(kStepPrefix, step));
      forget(step);
    }
    return retire(names);
  });
}

}  // namespace titan::checkpoint
