#include "worker/rank/tools/images/encodings_folder.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/service/failpoint/failpoint.h"
#include "nlohmann/json.hpp"
#include "worker/rank/tools/images/encoding.h"

namespace titan::tools {
namespace {

failpoint::Failpoint shard_written("encodings.shard.written");  // The file is complete, its record is not written.

std::string shard_name(int64_t number) { return absl::StrFormat("shard-%05d.safetensors", number); }
std::string record_name(int64_t number) { return absl::StrFormat("shard-%05d.json", number); }

// Names the keys in which two plans differ.
std::string difference(const std::string& there, const std::string& wanted) {
  const nlohmann::json old = nlohmann::json::parse(there, nullptr, /*allow_exceptions=*/false).flatten();
  const nlohmann::json now = nlohmann::json::parse(wanted).flatten();
  std::vector<std::string> keys;
  for (const auto& [key, value] : now.items()) {  // Keys such as "/encoders/t5_encoder".
    const nlohmann::json before = old.is_object() ? old.value(key, nlohmann::json()) : nlohmann::json();
    if (before != value) keys.push_back(absl::StrCat(key.substr(1), " was ", before.dump(), " and is ", value.dump()));
  }
  return absl::StrJoin(keys, ", ");
}

}  // namespace

absl::Status EncodingsFolder::claim(const std::string& plan, const std::string& empty) {
  TITAN_RETURN_IF_ERROR(files_.make_folders(folder_));
  TITAN_ASSIGN_OR_RETURN(lock_, files_.lock(path(absl::StrCat(".titan-encodings.", mark_, ".lock")),
                                            storage::LockMode::kExclusive, absl::Seconds(2)));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(folder_));
  for (const std::string& name : names) {
    if (name.starts_with("shard-") && name.ends_with(absl::StrCat(".", mark_, ".tmp")))
      TITAN_RETURN_IF_ERROR(files_.remove(path(name)));
  }
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::FileLock> all,
                         files_.lock(path(".titan-encodings.lock"), storage::LockMode::kExclusive, absl::Seconds(60)));
  const std::string plan_path = path(kEncodingsPlan);
  const absl::StatusOr<std::string> there = storage::read_file(files_, plan_path);
  if (absl::IsNotFound(there.status())) {
    TITAN_RETURN_IF_ERROR(refuse_other_files());
    TITAN_RETURN_IF_ERROR(storage::atomic_write(files_, path(data::kEmptyEncodings), empty));
    return storage::atomic_write(files_, plan_path, plan);
  }
  TITAN_RETURN_IF_ERROR(there.status());
  if (*there == plan) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder_, ": holds encodings of other images, by other encoders or with other options: ", difference(*there, plan),
      " (", plan_path, " has all): give --out another folder, or remove this one"));
}

// Refuses a folder without a plan that holds more than a killed process leaves before it writes one.
absl::Status EncodingsFolder::refuse_other_files() const {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(folder_));
  for (const std::string& name : names) {
    if (name.starts_with('.') || name.starts_with(data::kEmptyEncodings) || name.starts_with(kEncodingsPlan)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(folder_, ": holds other files (", name, "): give --out a new or empty folder"));
  }
  return absl::OkStatus();
}

std::optional<data::EncodingsManifest::Shard> EncodingsFolder::find_finished(int64_t number) const {
  const absl::StatusOr<std::string> record = storage::read_file(files_, path(record_name(number)));
  if (!record.ok()) return std::nullopt;
  absl::StatusOr<data::EncodingsManifest::Shard> shard =
      data::encoded_shard_from_json(nlohmann::json::parse(*record, nullptr, false), record_name(number));
  if (!shard.ok()) return std::nullopt;
  if (shard->samples == 0) return *shard;
  const absl::StatusOr<std::unique_ptr<storage::ReadableFile>> file = files_.open(path(shard->name));
  if (!file.ok() || (*file)->size() != shard->bytes) return std::nullopt;
  std::string head(static_cast<size_t>(shard->head_bytes), '\0');
  if (!(*file)->read(0, shard->head_bytes, head.data()).ok()) return std::nullopt;
  if (storage::crc32c(head.data(), head.size()) != static_cast<uint32_t>(shard->head_sum)) return std::nullopt;
  return *std::move(shard);
}

absl::Status EncodingsFolder::write_shard(int64_t number, const std::vector<EncodedSample>& samples, int64_t skipped) {
  TITAN_ASSIGN_OR_RETURN(data::EncodingsManifest::Shard shard,
                         write_encodings(files_, folder_, shard_name(number), mark_, samples));
  shard.skipped = skipped;
  shard_written.pass();
  return storage::atomic_write(files_, path(record_name(number)), absl::StrCat(to_json(shard).dump(), "\n"));
}

absl::Status EncodingsFolder::complete(const data::EncodingsManifest& manifest) {
  return storage::atomic_write(files_, path(data::kEncodingsManifest), manifest_text(manifest));
}

}  // namespace titan::tools
