#pragma once

// Checks the names of repositories, revisions and files, and parses hf:// paths. Names end up in URLs, and file names
// also in local paths, so a server's answer is not trusted with either.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::hub {

enum class RepoKind { kModel, kDataset };

struct Repo {
  RepoKind kind = RepoKind::kModel;
  std::string id;  // "ORG/NAME"; a few old ones are just "NAME".

  // Returns "NAME".
  std::string name() const;
};

// Parses "ORG/NAME". Errors: InvalidArgument, which explains the form of a name.
absl::StatusOr<Repo> parse_repo(RepoKind kind, const std::string& id);
// Accepts a branch, a tag, "refs/pr/N" or a commit. Errors: InvalidArgument.
absl::Status check_revision(const std::string& revision);
// Returns whether it is 40 lower-case hexadecimal digits, which always name the same files.
bool is_commit(const std::string& revision);
bool is_hex(const std::string& text, size_t digits);

// Checks that `name` is a safe path below a folder: relative, without ".", ".." and control characters, at most 1024
// bytes. Errors: InvalidArgument.
absl::Status check_file_name(const std::string& name);

// Location of a dataset's files on a hub, as Hugging Face's own tools write it:
// "hf://datasets/ORG/NAME@REVISION/PLACE".
struct DatasetPath {
  Repo repo = {RepoKind::kDataset, ""};
  std::string revision = "main";
  std::string place;  // A folder, a glob or a file of the repository; "": its top folder.
};

// Returns whether the path begins with hf://.
bool is_hub_path(std::string_view path);

// Parses such a path. Errors: InvalidArgument, which explains its form.
absl::StatusOr<DatasetPath> parse_dataset_path(const std::string& path);
// Returns the path's text, always with the revision.
std::string to_text(const DatasetPath& path);

// Returns the path's revision when it is a commit; "" otherwise, and for a path that is not on a hub.
std::string commit_of(const std::string& path);

// Returns the folder of the repository that contains everything a glob or a file name matches; "" for the top folder.
std::string folder_of(const std::string& place);

}  // namespace titan::hub
