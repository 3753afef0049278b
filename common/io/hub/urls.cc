#include "common/io/hub/urls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/http/urls.h"

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

}  // namespace titan::hub
