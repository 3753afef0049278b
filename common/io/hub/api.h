#pragma once

// Builds the addresses of a hub's API and parses its answers.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/hub/names.h"

namespace titan::hub {

// Addresses; `endpoint` has no '/' at its end. A revision with slashes is one word of the path.
std::string info_url(const std::string& endpoint, const Repo& repo, const std::string& revision);
// `cursor`: of the page before, encoded as it came; empty for the first one. `folder`: only what is below it.
std::string tree_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& cursor, const std::string& folder = "");
std::string file_url(const std::string& endpoint, const Repo& repo, const std::string& commit, const std::string& file);

// The parameter `cursor` of the address that a Link header calls next; "" when there is none.
std::string next_cursor(const std::string& link_header);

// A file of a repository, as the hub lists it.
struct RemoteFile {
  std::string name;    // Passed check_file_name.
  int64_t size = 0;    // Bytes.
  std::string oid;     // Of the git blob: the file itself, or a pointer to it.
  std::string sha256;  // Of files kept outside git; else empty.

  // What tells this content from any other.
  const std::string& digest() const { return sha256.empty() ? oid : sha256; }
};

// The answer of info_url(): the commit that the revision is now. Errors: DataLoss.
absl::StatusOr<std::string> parse_info(const std::string& json);
// The answer of tree_url(): the files of one page, without folders. Errors: DataLoss, or InvalidArgument for a name
// that leads out of a folder.
absl::StatusOr<std::vector<RemoteFile>> parse_tree(const std::string& json);

}  // namespace titan::hub
