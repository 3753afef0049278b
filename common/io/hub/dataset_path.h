#pragma once

// Where files of a dataset lie on a hub, as Hugging Face's own tools write it: "hf://datasets/ORG/NAME@REVISION/PLACE".

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/io/hub/names.h"

namespace titan::hub {

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

// The commit that is the path's revision; "" when that is no commit, or the path none of a hub.
std::string commit_of(const std::string& path);

// The folder of the repository below which all lies that a glob or a file's name stands for; "" for its top.
std::string folder_of(const std::string& place);

}  // namespace titan::hub
