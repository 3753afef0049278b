#pragma once

// What repositories, revisions and files are called. All of it ends up in URLs, and files' names in paths of this
// machine, too: a server's answer is not trusted with either.

#include <string>

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

}  // namespace titan::hub
