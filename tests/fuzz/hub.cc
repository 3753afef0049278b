// Answers of a hub, and records in a folder of downloads.

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "common/base/text/message_text.h"
#include "common/io/http/http.h"
#include "common/io/http/ranges.h"
#include "common/io/http/urls.h"
#include "common/io/hub/api.h"
#include "common/io/hub/client.h"
#include "common/io/hub/folder.h"
#include "common/io/hub/names.h"
#include "common/io/hub/part_file.h"
#include "common/io/hub/verification.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

void require_inside(const std::string& name) {
  require(!name.empty() && name[0] != '/' && ("/" + name + "/").find("/../") == std::string::npos &&
              name.find('\0') == std::string::npos,
          "a file's name stays in its folder");
}

}  // namespace

// Answers about a revision and its files.
TITAN_FUZZ(hub_answers, 3000) {
  const std::string text(bytes);
  const auto commit = hub::parse_info(text);
  require(!commit.ok() || hub::is_commit(*commit), "a commit id is valid");
  const auto files = hub::parse_tree(text);
  if (!files.ok()) return;
  for (const hub::RemoteFile& file : *files) {
    require_inside(file.name);
    require(file.size >= 0 && (file.digest().size() == 40 || file.digest().size() == 64), "a file can be compared");
    require(hub::file_url("https://hub", {hub::RepoKind::kModel, "a/b"}, "main", file.name)
                    .find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%/:") ==
                std::string::npos,
            "a URL needs no quotes");
  }
}

// Headers: a redirect, a page, a range, a time.
TITAN_FUZZ(hub_headers, 3000) {
  const std::string text(bytes);
  const std::string next = http::redirected("https://hub/a", text);
  require(next.empty() || !http::origin(next).empty(), "a redirect leads to a server");
  if (http::origin(text) == "https://hub:443") {
    const std::string rest = absl::AsciiStrToLower(text).substr(std::min(text.size(), text.find(':') + 1));
    const size_t begin = std::min(rest.size(), rest.find_first_not_of('/'));
    const std::string server = rest.substr(begin, rest.find_first_of("/?#", begin) - begin);
    const std::string host = server.substr(server.rfind('@') + 1);  // The whole text if there is no '@'.
    require(host == "hub" || host.compare(0, 4, "hub:") == 0, "no other server has this origin");
  }
  (void)hub::next_cursor(text);
  (void)http::parse_retry_after(text);
  if (const auto range = http::parse_content_range(text))
    require(range->range.begin >= 0 && range->range.begin < range->range.end && range->range.end <= range->size,
            "a range is valid");
  for (const char c : text::printable_name(text)) require(c >= 0x20 && c < 0x7f, "its text can be shown");
}

// Location of a job's data, as the user writes it.
TITAN_FUZZ(hub_paths, 2000) {
  const auto path = hub::parse_dataset_path(std::string(bytes));
  if (!path.ok()) return;
  if (!path->place.empty()) require_inside(path->place);
  const auto again = hub::parse_dataset_path(hub::to_text(*path));
  require(again.ok() && hub::to_text(*again) == hub::to_text(*path) && again->place == path->place,
          "a path round-trips to its text");
  if (const std::string folder = hub::folder_of(path->place); !folder.empty()) {
    require_inside(folder);
    require(path->place.compare(0, folder.size(), folder) == 0, "a glob lies below its folder");
  }
}

// Records of a partial download (900 of 1000 bytes) and of complete files.
TITAN_FUZZ(hub_records, 400) {
  scratch_file("a.part", std::string(900, 'x'));
  scratch_file("a.part.json", bytes);
  scratch_file(".titan-assets.json", bytes);
  const auto folder = hub::Folder::make(scratch_folder());
  require(folder.ok(), "the folder exists");
  const hub::RemoteFile file{"a", 1000, "0123456789abcdef0123456789abcdef01234567", ""};
  for (const http::ByteRange& range : hub::recorded_parts(*folder, file).all())
    require(range.begin >= 0 && range.begin < range.end && range.end <= 900, "ranges lie inside the file");
  const hub::Inventory inventory = hub::Inventory::load(*folder);
  require(inventory.save(*folder).ok(), "the record is written again");
}

}  // namespace titan::fuzz
