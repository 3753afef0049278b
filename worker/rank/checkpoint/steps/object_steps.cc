#include "worker/rank/checkpoint/steps/object_steps.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/host_facts.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_files.h"
#include "common/io/s3/tombstone.h"
#include "common/io/storage/process_identity.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"

namespace titan::checkpoint {
namespace {

constexpr char kSteps[] = "steps";  // The folder's fence remembers full steps under this name.

absl::Status nothing() { return absl::OkStatus(); }

std::string name_of(const s3::Object& object) { return object.key.substr(object.key.rfind('/') + 1); }

// Returns whether last_save_in_hf wrote the file, under a name that is never reused:
// "model-SALT-00001-of-00003.safetensors". Files of a hub have no salt.
bool is_export(const std::string& name) {
  return absl::StartsWith(name, "model-") && absl::EndsWith(name, ".safetensors") &&
         std::count(name.begin(), name.end(), '-') > 3;
}

absl::StatusOr<Manifest> read_manifest(storage::Files& files, const std::string& folder, int64_t step) {
  TITAN_ASSIGN_OR_RETURN(const std::string text,
                         storage::read_file(files, storage::join_path(step_path(folder, step), kManifestName)));
  return manifest_from_text(text);
}

}  // namespace

ObjectStepStore::~ObjectStepStore() {
  wait();
  if (objects_ == nullptr) return;
  client_->disable_retries();
  objects_->release().IgnoreError();  // If this fails, the next job waits until the fence has been silent for long
                                      // enough.
}

std::string ObjectStepStore::key_of(int64_t step, const std::string& name) const {
  return absl::StrCat(key_, key_.empty() ? "" : "/", "step-", step, "/", name);
}

absl::StatusOr<Remembered> ObjectStepStore::take() {
  if (objects_ != nullptr) return Remembered{};
  TITAN_ASSIGN_OR_RETURN(const s3::Location location, s3::parse_location(folder_));
  TITAN_ASSIGN_OR_RETURN(client_, s3::client_of(folder_));
  key_ = location.key;
  TITAN_ASSIGN_OR_RETURN(const std::string holder, s3::holder_name(job_uid_, dump_));
  auto fence = std::make_unique<s3::ObjectFence>(client_, key_);
  storage::Fence::Taken taken;
  TITAN_RETURN_IF_ERROR(fence->take({.job_uid = holder,
                                     .attempt = attempt_,
                                     .job = job_uid_,
                                     .host = host::hostname(),
                                     .pid = ::getpid(),
                                     .process = storage::process_identity()},
                                    {.sleep = {}, .say = say_}, taken));
  fence->start_heartbeat();
  objects_ = std::move(fence);
  if (!taken.taken_from.empty()) {
    say_(absl::StrCat("the checkpoint folder ", folder_, " was taken over from ", taken.taken_from,
                      ", which ended without releasing it"));
  }
  const auto last = taken.committed.find(kSteps);
  if (last == taken.committed.end()) return Remembered{};
  return Remembered{last->second.step, last->second.job_uid != holder};
}

absl::Status ObjectStepStore::publish(const s3::ObjectFence::Commit& commit, bool& discard) {
  discard = true;
  TITAN_RETURN_IF_ERROR(fence_.publish(job_uid_, attempt_, nothing));
  bool unknown = false;
  absl::Status published = objects_->publish(commit, unknown);
  discard = !published.ok() && !unknown;
  return published;
}

absl::Status ObjectStepStore::publish_export(int64_t step, const std::string& index,
                                             absl::FunctionRef<absl::Status()> place, bool& discard) {
  discard = true;
  TITAN_RETURN_IF_ERROR(objects_->check());
  TITAN_RETURN_IF_ERROR(place());
  return publish({.key = key_of(step, kHfIndexName), .text = index, .remembered = "", .step = step}, discard);
}

absl::Status ObjectStepStore::publish(const Manifest& manifest, const std::string& text, const std::string& folder,
                                      bool& discard) {
  TITAN_RETURN_IF_ERROR(publish({.key = key_of(manifest.step, kManifestName),
                                 .text = text,
                                 .remembered = manifest.full ? kSteps : "",
                                 .step = manifest.step},
                                discard));
  // The dump folder's fence remembers the step, too, in case the whole bucket is lost.
  if (manifest.full) fence_.publish_step(job_uid_, attempt_, folder, manifest.step, nothing).IgnoreError();
  return absl::OkStatus();
}

// Returns the shards next to a manifest that the manifest does not name.
absl::StatusOr<std::vector<std::string>> ObjectStepStore::unnamed(const Manifest& manifest,
                                                                  const std::vector<s3::Object>& objects) {
  std::set<std::string> named;
  for (const FileRecord& file : manifest.files) named.insert(file.name);
  std::vector<std::string> doomed;
  for (const s3::Object& object : objects) {
    if (is_shard(name_of(object)) && !named.contains(name_of(object))) doomed.push_back(object.key);
  }
  return doomed;
}

absl::StatusOr<std::vector<std::string>> ObjectStepStore::leftovers(int64_t step,
                                                                    const std::vector<s3::Object>& objects,
                                                                    absl::Time now, std::vector<std::string>& unknown) {
  std::set<std::string> writers;  // "a3-00012" for each shard.
  size_t shards = 0;
  bool live = false, of_others = false, retired = false, stranger = false;
  std::vector<std::string> doomed, exports, also_doomed;  // The last list is deleted in any case.
  for (const s3::Object& object : objects) {
    const std::string name = name_of(object);
    const bool staged = absl::StrContains(object.key, absl::StrCat("/", kExportPrefix));
    if (staged || is_export(name)) (staged ? also_doomed : exports).push_back(object.key);
    if (staged) continue;
    bool gone = false;
    if (name == kManifestName || name == kHfIndexName) {
      TITAN_ASSIGN_OR_RETURN(gone, s3::is_tombstone(*client_, object.key, object.size));
      (name == kManifestName ? live : of_others) |= !gone;
      retired |= gone;
    }
    of_others |= name == kDcpMetadataName;
    // This name is reused: a late deletion could hit the next export's file.
    if (name == "config.json") continue;
    const bool ours = is_shard(name) || is_export(name);
    if (gone ? now - object.modified > s3::kTombstoneLifetime : ours) doomed.push_back(object.key);
    stranger |= !ours && !gone;
    if (is_shard(name)) ++shards, writers.insert(name.substr(0, name.find('-') + 6));
  }
  const auto with = [](std::vector<std::string> some, const std::vector<std::string>& more) {
    some.insert(some.end(), more.begin(), more.end());
    return some;
  };
  if (of_others) return also_doomed;
  // Without traces of an export or a step of a job, files that no attempt writes belong to another program, and so does
  // everything next to them.
  if (!live && !retired && exports.empty() && stranger) {
    unknown.push_back(step_path(folder_, step));
    return also_doomed;
  }
  if (!live) return with(std::move(also_doomed), doomed);
  also_doomed = with(std::move(also_doomed), exports);
  // Manifests of large jobs take long to read, and a start should not. So the manifest is read only if the names of the
  // files look odd.
  const bool odd = shards > writers.size() || std::any_of(writers.begin(), writers.end(), [&](const std::string& one) {
                     return one.substr(0, one.find('-')) != writers.begin()->substr(0, writers.begin()->find('-'));
                   });
  if (!odd) return also_doomed;
  const absl::StatusOr<Manifest> manifest = read_manifest(files_, folder_, step);
  if (!manifest.ok()) return also_doomed;  // A damaged manifest does not justify deletions.
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> shards_of_nobody, unnamed(*manifest, objects));
  return with(std::move(also_doomed), shards_of_nobody);
}

absl::StatusOr<std::vector<std::string>> ObjectStepStore::clean_leftovers() {
  const std::string prefix = key_.empty() ? "" : key_ + "/";
  TITAN_ASSIGN_OR_RETURN(s3::Listing all, client_->list(prefix, /*deep=*/true));
  std::map<int64_t, std::vector<s3::Object>> steps;
  for (s3::Object& object : all.objects) {
    const std::string below = object.key.substr(prefix.size());
    if (const int64_t step = step_of(below.substr(0, below.find('/'))); step >= 0) {
      steps[step].push_back(std::move(object));
    }
  }
  std::vector<std::string> doomed, unknown;
  for (const auto& [step, objects] : steps) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> more, leftovers(step, objects, all.now, unknown));
    doomed.insert(doomed.end(), more.begin(), more.end());
  }
  TITAN_RETURN_IF_ERROR(objects_->check());
  delete_keys(std::move(doomed));
  return unknown;
}

absl::Status ObjectStepStore::clean_step(const Manifest& manifest) {
  TITAN_ASSIGN_OR_RETURN(const s3::Listing all, client_->list(key_of(manifest.step, ""), /*deep=*/true));
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> doomed, unnamed(manifest, all.objects));
  if (doomed.empty()) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(objects_->check());
  delete_keys(std::move(doomed));
  return absl::OkStatus();
}

absl::Status ObjectStepStore::purge(int keep_latest_k) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<int64_t> doomed, stale_steps(keep_latest_k));
  if (doomed.empty()) return absl::OkStatus();
  std::vector<std::string> manifests, rest;
  for (const int64_t step : doomed) {
    TITAN_ASSIGN_OR_RETURN(const s3::Listing all, client_->list(key_of(step, ""), /*deep=*/true));
    const std::string manifest = key_of(step, kManifestName), index = key_of(step, kHfIndexName);
    manifests.insert(manifests.end(), {manifest, index});
    for (const s3::Object& object : all.objects) {
      if (object.key != manifest && object.key != index) rest.push_back(object.key);
    }
  }
  TITAN_RETURN_IF_ERROR(objects_->retire(manifests));
  for (const int64_t step : doomed) forget(step);
  delete_keys(std::move(rest));
  return absl::OkStatus();
}

void ObjectStepStore::delete_keys(std::vector<std::string> keys) {
  if (keys.empty()) return;
  delete_in_background([client = client_, keys = std::move(keys)] {
    for (const std::string& key : keys) client->remove(key).IgnoreError();  // The next start tries again.
  });
}

}  // namespace titan::checkpoint
