#pragma once

// Checks what repositories, revisions and files are called, and parses hf:// paths. All of it ends up in URLs, and
// names of files in local paths too, so a server's answer is not trusted with either.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::hub {

enum class RepoKind { kModel, kDataset };

struct Repo {
  RepoKind kind = RepoKind::kModel;
  std::string id;  // "ORG/NAME"; a few old ones are "NAME" alone.

  // "NAME".
  std::string name() const;
};

// Errors: InvalidArgument that says what a name looks like.
absl::StatusOr<Repo> parse_repo(RepoKind kind, const std::string& id);
// A branch, a tag, "refs/pr/N" or a commit.
absl::Status check_revision(const std::string& revision);
// 40 hexadecimal digits: names the same files for ever.
bool is_commit(const std::string& revision);
bool is_hex(const std::string& text, size_t digits);

// Whether `name` is a path below a folder and stays there whatever is in it: relative, no "." or "..", no control
// characters. Errors: InvalidArgument.
absl::Status check_file_name(const std::string& name);

// Where files of a dataset lie on a hub, as Hugging Face's own tools write it: "hf://datasets/ORG/NAME@REVISION/PLACE".
struct DatasetPath {
  Repo repo = {RepoKind::kDataset, ""};
  std::string revision = "main";
  std::string place;  // A folder, a glob or a file of the repository; "": its top folder.
};

// Whether it begins as such a path does.
bool is_hub_path(std::string_view path);

// Errors: InvalidArgument that says what such a path looks like.
absl::StatusOr<DatasetPath> parse_dataset_path(const std::string& path);
// With the revision, always.
std::string to_text(const DatasetPath& path);

// The commit that is the path's revision; "" when that is not a commit, or the path not one of a hub.
std::string commit_of(const std::string& path);

// The folder of the repository below which all lies that a glob or a file's name stands for; "" for its top.
std::string folder_of(const std::string& place);

}  // namespace titan::hub
