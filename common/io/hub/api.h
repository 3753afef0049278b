#pragma once

// Builds the addresses of a hub's API and parses its answers.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/hub/names.h"

namespace titan::hub {

// These return addresses of the hub's API. `endpoint` has no trailing '/'. A revision with slashes is encoded as one
// path component.
std::string info_url(const std::string& endpoint, const Repo& repo, const std::string& revision);
// `cursor`: from the previous page, still encoded; empty for the first page. `folder`: lists only what is below it.
std::string tree_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& cursor, const std::string& folder = "");
std::string file_url(const std::string& endpoint, const Repo& repo, const std::string& commit, const std::string& file);

// Returns the parameter `cursor` of the next link in a Link header; "" when there is none.
std::string next_cursor(const std::string& link_header);

// A file of a repository, as the hub lists it.
struct RemoteFile {
  std::string name;    // Has passed check_file_name.
  int64_t size = 0;    // Bytes.
  std::string oid;     // Id of the git blob: the file itself, or a pointer to it.
  std::string sha256;  // For files stored outside git; else empty.

  // Identifies this content.
  const std::string& digest() const { return sha256.empty() ? oid : sha256; }
};

// Parses the answer to info_url() and returns the commit that the revision names now. Errors: DataLoss.
absl::StatusOr<std::string> parse_info(const std::string& json);
// Parses the answer to tree_url() and returns the files of one page, without folders. Errors: DataLoss, or
// InvalidArgument for a name that check_file_name() rejects.
absl::StatusOr<std::vector<RemoteFile>> parse_tree(const std::string& json);

}  // namespace titan::hub
