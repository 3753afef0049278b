#include "worker/rank/tools/whole_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_files.h"
#include "common/io/storage/process_identity.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"

namespace titan::tools {
namespace {

constexpr char kPartial[] = ".partial-";
constexpr auto& kWriter = checkpoint::kWriterName;  // The sign: it names the process that writes the folder.

absl::Status exists_already(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(path, ": exists already; name a new folder"));
}

absl::Status sign(storage::Files& files, const std::string& folder) {
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const auto writer, files.create(storage::join_path(folder, kWriter)));
  TITAN_RETURN_IF_ERROR(writer->append(storage::process_identity()));
  TITAN_RETURN_IF_ERROR(writer->sync());
  return writer->close();
}

// Makes a new folder next to `whole` with this process's sign. Process ids repeat between containers, so a folder with
// another process's sign is left alone.
absl::StatusOr<std::string> signed_folder(storage::Files& files, const std::string& whole) {
  for (int more = 0;; ++more) {
    std::string folder = absl::StrCat(whole, kPartial, getpid());
    if (more > 0) absl::StrAppend(&folder, "-", more);
    const bool there = files.exists(folder);
    const absl::Status done = sign(files, folder);
    if (done.ok()) return folder;
    if (absl::IsAlreadyExists(done)) continue;
    if (!there) files.remove_folder(folder).IgnoreError();
    return done;
  }
}

// Removes what killed writers of `whole` left. Folders of live writers, or of writers that cannot be checked from here,
// are not touched.
void remove_leftovers(storage::Files& files, const std::string& whole) {
  const std::filesystem::path parent = std::filesystem::absolute(whole).parent_path();
  const std::string prefix = std::filesystem::path(whole).filename().string() + kPartial;
  const auto names = files.list(parent.string());
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string folder = storage::join_path(parent.string(), name);
    if (!absl::StartsWith(name, prefix)) continue;
    const auto writer = storage::read_file(files, storage::join_path(folder, kWriter), 4096);
    if (writer.ok() && storage::process_has_ended(*writer)) files.remove_folder(folder).IgnoreError();
  }
}

// Returns the target of a link, because a folder cannot be renamed to a link.
absl::StatusOr<std::string> behind_link(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (!error) return real.string();
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": a dangling symbolic link; remove it, or use a new folder"));
}

absl::Status make_by_renaming(storage::Files& files, const std::string& path,
                              absl::FunctionRef<absl::Status(const std::string&)> fill) {
  TITAN_ASSIGN_OR_RETURN(const std::string whole, behind_link(path));
  if (const auto entries = files.list(whole); files.exists(whole) && (!entries.ok() || !entries->empty()))
    return exists_already(whole);
  remove_leftovers(files, whole);
  TITAN_ASSIGN_OR_RETURN(const std::string partial, signed_folder(files, whole));
  absl::Status status = fill(partial);
  if (status.ok()) status = files.rename(partial, whole);
  if (!status.ok()) {
    files.remove_folder(partial).IgnoreError();
    return status;
  }
  // The sign is removed last, so that the folder of a writer that was killed can be recognized until then.
  TITAN_RETURN_IF_ERROR(files.remove(storage::join_path(whole, kWriter)));
  return files.sync_folder(std::filesystem::absolute(whole).parent_path().string());
}

// A folder of a store that is being filled.
class StoreFolder {
 public:
  static absl::StatusOr<StoreFolder> open(storage::Files& files, const std::string& path) {
    TITAN_ASSIGN_OR_RETURN(const s3::Location place, s3::parse_location(path));
    TITAN_ASSIGN_OR_RETURN(std::shared_ptr<s3::S3Client> client, s3::client_of(path));
    return StoreFolder(files, path, place.key.empty() ? "" : place.key + "/", std::move(client));
  }

  // Takes the folder. Of several writers one gets it, and none gets a folder with contents other than those of a killed
  // writer. No sign is written into a folder that has contents without one.
  absl::Status take() {
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, entries());
    const bool is_signed = std::find(names.begin(), names.end(), kWriter) != names.end();
    if (!is_signed && !names.empty()) return exists_already(path_);
    const auto tag = sign({.kind = s3::WriteCondition::kAbsent}, Found::kUnknown);
    if (absl::IsAlreadyExists(tag.status())) return inherit();
    TITAN_RETURN_IF_ERROR(tag.status());
    return claim(*tag);
  }
  absl::Status leave() { return client_->remove(prefix_ + kWriter); }

  // Removes the files that make a folder complete first. The sign stays, so that if this process is killed, the next
  // writer recognizes the rest.
  absl::Status empty() {
    TITAN_ASSIGN_OR_RETURN(s3::Listing all, client_->list(prefix_, /*deep=*/true));
    std::stable_partition(all.objects.begin(), all.objects.end(), [](const s3::Object& one) {
      return absl::EndsWith(one.key, ".json") || absl::EndsWith(one.key, "/.metadata");
    });
    for (const s3::Object& one : all.objects) {
      if (one.key != prefix_ + kWriter) TITAN_RETURN_IF_ERROR(client_->remove(one.key));
    }
    return absl::OkStatus();
  }

 private:
  StoreFolder(storage::Files& files, std::string path, std::string prefix, std::shared_ptr<s3::S3Client> client)
      : files_(files), path_(std::move(path)), prefix_(std::move(prefix)), client_(std::move(client)) {}

  // Knowledge of the signer about the folder: kEmpty if all its contents come from this or earlier signers.
  enum class Found { kUnknown, kEmpty };
  static constexpr char kFoundEmpty[] = "\nfound empty";

  absl::StatusOr<std::vector<std::string>> entries() {
    auto names = files_.list(path_);
    if (absl::IsNotFound(names.status())) return std::vector<std::string>();
    return names;
  }

  // Writes the sign and returns its tag.
  absl::StatusOr<std::string> sign(const s3::WriteCondition& condition, Found found) {
    const std::string text = absl::StrCat(storage::process_identity(), found == Found::kEmpty ? kFoundEmpty : "");
    return client_->put(prefix_ + kWriter, text, condition);
  }

  // Claims the folder after this process has written the sign `tag`: it gets the folder if there are no other contents.
  absl::Status claim(const std::string& tag) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, entries());
    if (names.size() > 1) {
      TITAN_RETURN_IF_ERROR(client_->remove(prefix_ + kWriter));
      return exists_already(path_);
    }
    TITAN_RETURN_IF_ERROR(sign({.kind = s3::WriteCondition::kSame, .etag = tag}, Found::kEmpty).status());
    return abort_uploads();
  }

  absl::Status inherit() {
    s3::Facts facts;
    const absl::StatusOr<std::string> text = client_->text(prefix_ + kWriter, facts);
    if (absl::IsNotFound(text.status())) return exists_already(path_);  // Finished in the meantime.
    TITAN_RETURN_IF_ERROR(text.status());
    std::string writer = *text;
    const Found found = absl::EndsWith(writer, kFoundEmpty) ? Found::kEmpty : Found::kUnknown;
    if (found == Found::kEmpty) writer.resize(writer.size() - std::strlen(kFoundEmpty));
    absl::StatusOr<std::string> taken = absl::AlreadyExistsError("");
    if (storage::process_has_ended(writer))
      taken = sign({.kind = s3::WriteCondition::kSame, .etag = facts.etag}, found);
    if (absl::IsAlreadyExists(taken.status())) {
      return absl::AlreadyExistsError(
          absl::StrCat(path_, ": another process writes there, or died on another machine while writing (", kWriter,
                       " names the process): delete the contents once no process writes there, or use a new folder"));
    }
    TITAN_RETURN_IF_ERROR(taken.status());
    if (found == Found::kUnknown) return claim(*taken);
    TITAN_RETURN_IF_ERROR(empty());
    return abort_uploads();
  }

  // Aborts uploads of killed writers, whose parts are invisible.
  absl::Status abort_uploads() {
    TITAN_ASSIGN_OR_RETURN(const std::vector<s3::Upload> uploads, client_->uploads(prefix_));
    for (const s3::Upload& upload : uploads) TITAN_RETURN_IF_ERROR(client_->abort(upload));
    return absl::OkStatus();
  }

  storage::Files& files_;
  const std::string path_, prefix_;
  const std::shared_ptr<s3::S3Client> client_;
};

absl::Status make_in_store(storage::Files& files, const std::string& whole,
                           absl::FunctionRef<absl::Status(const std::string&)> fill) {
  TITAN_ASSIGN_OR_RETURN(StoreFolder folder, StoreFolder::open(files, whole));
  TITAN_RETURN_IF_ERROR(folder.take());
  const absl::Status status = fill(whole);
  if (status.ok()) return folder.leave();
  if (folder.empty().ok()) folder.leave().IgnoreError();
  return status;
}

}  // namespace

absl::Status write_atomically(storage::Files& files, const std::string& path,
                              absl::FunctionRef<absl::Status(const std::string& folder)> fill) {
  const std::string whole = path.substr(0, path.find_last_not_of('/') + 1);
  return s3::is_location(whole) ? make_in_store(files, whole, fill) : make_by_renaming(files, whole, fill);
}

}  // namespace titan::tools
