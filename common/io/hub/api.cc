#include "common/io/hub/api.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/io/http/urls.h"
#include "nlohmann/json.hpp"

namespace titan::hub {
namespace {

std::string api(const std::string& endpoint, const Repo& repo) {
  return absl::StrCat(endpoint, "/api/", repo.kind == RepoKind::kModel ? "models" : "datasets", "/", repo.id);
}

}  // namespace

std::string info_url(const std::string& endpoint, const Repo& repo, const std::string& revision) {
  return absl::StrCat(api(endpoint, repo), "/revision/", http::percent_encoded(revision, false));
}

std::string tree_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& cursor, const std::string& folder) {
  return absl::StrCat(api(endpoint, repo), "/tree/", http::percent_encoded(commit, false), folder.empty() ? "" : "/",
                      http::percent_encoded(folder, true), "?recursive=true", cursor.empty() ? "" : "&cursor=", cursor);
}

std::string file_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& file) {
  return absl::StrCat(endpoint, repo.kind == RepoKind::kModel ? "/" : "/datasets/", repo.id, "/resolve/",
                      http::percent_encoded(commit, false), "/", http::percent_encoded(file, true));
}

std::string next_cursor(const std::string& link_header) {
  for (const auto& part : absl::StrSplit(link_header, ',')) {
    const std::string link(part);
    if (!absl::StrContains(link, "rel=\"next\"")) continue;
    const std::string url = link.substr(0, link.find('>'));
    for (const char* mark : {"?cursor=", "&cursor="}) {
      const size_t at = url.find(mark);
      if (at != std::string::npos) return url.substr(at + 8, url.find_first_of("&#", at + 8) - at - 8);
    }
  }
  return "";
}

namespace {

using nlohmann::json;

constexpr int64_t kMaxFile = int64_t{1} << 53;

absl::Status no_hub(const std::string& what) {
  return absl::DataLossError(absl::StrCat("the answer is not a hub's: ", what, "; check --endpoint and HF_ENDPOINT"));
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t size_at(const json& object) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_integer()) return -1;
  if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(kMaxFile)) return -1;
  return found->get<int64_t>();
}

absl::StatusOr<RemoteFile> parse_file(const json& entry) {
  RemoteFile file{text_at(entry, "path"), size_at(entry), text_at(entry, "oid"), ""};
  TITAN_RETURN_IF_ERROR(check_file_name(file.name));
  if (file.size < 0) return no_hub(absl::StrCat(text::printable_name(file.name), " has no size"));
  if (!is_hex(file.oid, 40)) return no_hub(absl::StrCat(text::printable_name(file.name), " has no git object id"));
  const auto lfs = entry.find("lfs");
  if (lfs == entry.end() || !lfs->is_object()) return file;
  file.sha256 = text_at(*lfs, "oid");
  file.size = size_at(*lfs);
  if (!is_hex(file.sha256, 64) || file.size < 0)
    return no_hub(absl::StrCat(text::printable_name(file.name), " has no sha256 or size of its large object"));
  return file;
}

}  // namespace

absl::StatusOr<std::string> parse_info(const std::string& text) {
  const json info = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string commit = info.is_object() ? text_at(info, "sha") : "";
  if (!is_commit(commit)) return no_hub("it names no commit (sha)");
  return commit;
}

absl::StatusOr<std::vector<RemoteFile>> parse_tree(const std::string& text) {
  const json tree = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!tree.is_array()) return no_hub("it lists no files");
  std::vector<RemoteFile> files;
  for (const json& entry : tree) {
    if (!entry.is_object()) return no_hub("an entry of its list is not a file");
    if (text_at(entry, "type") == "directory") continue;
    TITAN_ASSIGN_OR_RETURN(RemoteFile file, parse_file(entry));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace titan::hub
