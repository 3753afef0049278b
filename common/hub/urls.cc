#include "common/hub/urls.h"

#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace titan::hub {
namespace {

constexpr char kSchemes[] = "://";

std::string api(const std::string& endpoint, const Repo& repo) {
  return absl::StrCat(endpoint, "/api/", repo.kind == RepoKind::kModel ? "models" : "datasets", "/", repo.id);
}

// "host:port", "host" or "[address]:port", without a path.
std::optional<std::string> with_port(std::string authority, const std::string& scheme) {
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.rfind(':');
  const bool named = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  if (!named) return absl::StrCat(authority, scheme == "https" ? ":443" : ":80");
  int port = 0;
  if (!absl::SimpleAtoi(authority.substr(colon + 1), &port) || port < 1 || port > 65535) return std::nullopt;
  return absl::StrCat(authority.substr(0, colon), ":", port);
}

}  // namespace

std::string percent_encoded(const std::string& text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes)) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string info_url(const std::string& endpoint, const Repo& repo, const std::string& revision) {
  return absl::StrCat(api(endpoint, repo), "/revision/", percent_encoded(revision, false));
}

std::string tree_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& cursor) {
  return absl::StrCat(api(endpoint, repo), "/tree/", percent_encoded(commit, false), "?recursive=true",
                      cursor.empty() ? "" : "&cursor=", cursor);
}

std::string file_url(const std::string& endpoint, const Repo& repo, const std::string& commit,
                     const std::string& file) {
  return absl::StrCat(endpoint, repo.kind == RepoKind::kModel ? "/" : "/datasets/", repo.id, "/resolve/",
                      percent_encoded(commit, false), "/", percent_encoded(file, true));
}

std::string origin(const std::string& url) {
  const size_t end = url.find(kSchemes);
  if (end == std::string::npos) return "";
  const std::string scheme = absl::AsciiStrToLower(url.substr(0, end));
  if (scheme != "http" && scheme != "https") return "";
  const size_t host = end + 3;
  const std::string authority = absl::AsciiStrToLower(url.substr(host, url.find_first_of("/?#\\", host) - host));
  if (authority.empty() || authority[0] == ':' || absl::StrContains(authority, '@')) return "";
  const std::optional<std::string> whole = with_port(authority, scheme);
  return whole ? absl::StrCat(scheme, kSchemes, *whole) : "";
}

bool is_loopback(const std::string& url) {
  std::string host = origin(url);
  if (host.empty()) return false;
  host = host.substr(host.find(kSchemes) + 3);
  host = host.substr(0, host.rfind(':'));
  std::vector<std::string> numbers = absl::StrSplit(host, '.');
  int ignored = 0;
  bool address = numbers.size() == 4;
  for (const std::string& number : numbers) address = address && absl::SimpleAtoi(number, &ignored);
  return host == "localhost" || host == "[::1]" || (address && numbers[0] == "127");
}

std::string redirected(const std::string& url, const std::string& location) {
  if (absl::StartsWith(location, "//")) {
    const std::string whole = absl::StrCat(url.substr(0, url.find(kSchemes) + 1), location);
    return origin(whole).empty() ? "" : whole;
  }
  if (!absl::StartsWith(location, "/")) return origin(location).empty() ? "" : location;
  return absl::StrCat(url.substr(0, url.find('/', url.find(kSchemes) + 3)), location);
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
