#include "common/io/hub/settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/http/urls.h"
#include "common/io/hub/api.h"
#include "common/io/hub/names.h"

namespace titan::hub {
namespace {

std::string value(const http::Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string first_value(const http::Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string found = value(environment, name); !found.empty()) return found;
  }
  return "";
}

struct TokenFile {
  std::string text;
  bool others_read = false;
};

absl::StatusOr<TokenFile> read_token_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const absl::Cleanup close_it = [file] {
    if (file >= 0) close(file);
  };
  struct stat about {};
  if (file < 0 || fstat(file, &about) != 0) return errno_status(errno, absl::StrCat("read the token file ", path));
  std::array<char, 1024> bytes;
  const ssize_t size = read(file, bytes.data(), bytes.size());
  if (size < 0) return errno_status(errno, absl::StrCat("read the token file ", path));
  return TokenFile{std::string(absl::StripAsciiWhitespace({bytes.data(), static_cast<size_t>(size)})),
                   (about.st_mode & 0077) != 0};
}

// The token becomes a header line of a request: nothing in it may end that line.
absl::Status check_token(const std::string& token, const std::string& from) {
  const bool word =
      !token.empty() && std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (word) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(from, " has no valid token: a token is one word, as the hub's page of access tokens shows it once"));
}

absl::StatusOr<std::string> token_of_option(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const TokenFile file, read_token_file(path));
  if (file.others_read)
    return absl::PermissionDeniedError(
        absl::StrCat("--token-file ", path,
                     " can be read by others: chmod 600 it, and replace the token if others may "
                     "have read it"));
  TITAN_RETURN_IF_ERROR(check_token(file.text, absl::StrCat("--token-file ", path)));
  return file.text;
}

// Returns the token that `hf auth login` saved, if any.
absl::StatusOr<std::string> token_of_login(const http::Environment& environment, std::vector<std::string>& warnings) {
  std::string path = value(environment, "HF_TOKEN_PATH");
  if (path.empty() && !home_folder(environment).empty()) path = home_folder(environment) + "/token";
  if (path.empty()) return std::string();
  const absl::StatusOr<TokenFile> file = read_token_file(path);
  if (absl::IsNotFound(file.status()) || (file.ok() && file->text.empty())) return std::string();
  TITAN_RETURN_IF_ERROR(file.status());
  TITAN_RETURN_IF_ERROR(check_token(file->text, path));
  if (file->others_read)
    warnings.push_back(absl::StrCat(path, ", the hub's token, can be read by others: chmod 600 it"));
  return file->text;
}

absl::StatusOr<std::string> find_token(const http::Environment& environment, const std::string& token_file,
                                       std::vector<std::string>& warnings) {
  if (!token_file.empty()) return token_of_option(token_file);
  const std::string named(absl::StripAsciiWhitespace(first_value(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})));
  if (named.empty()) return token_of_login(environment, warnings);
  TITAN_RETURN_IF_ERROR(check_token(named, "HF_TOKEN"));
  return named;
}

absl::Status check_endpoint(const std::string& endpoint, const std::string& from) {
  const bool plain = endpoint.find_first_of("?# ") == std::string::npos;
  if (plain && !http::origin(endpoint).empty()) return absl::OkStatus();
  // It may hold a password, so the message does not repeat it.
  return absl::InvalidArgumentError(absl::StrCat(from, " must be https://HOST or http://HOST:PORT, without a user"));
}

}  // namespace

std::string home_folder(const http::Environment& environment) {
  if (std::string named = value(environment, "HF_HOME"); !named.empty()) {
    if (absl::StartsWith(named, "~/")) named = value(environment, "HOME") + named.substr(1);
    return named;
  }
  const std::string cache = value(environment, "XDG_CACHE_HOME"), home = value(environment, "HOME");
  if (!cache.empty()) return cache + "/huggingface";
  return home.empty() ? "" : home + "/.cache/huggingface";
}

absl::StatusOr<http::HttpSettings> settings_from(const http::Environment& environment, const std::string& endpoint,
                                                 const std::string& token_file, std::vector<std::string>& warnings) {
  const std::string offline = absl::AsciiStrToLower(value(environment, "HF_HUB_OFFLINE"));
  if (offline == "1" || offline == "true" || offline == "on" || offline == "yes")
    return absl::FailedPreconditionError("HF_HUB_OFFLINE is set, so the hub is not contacted; unset it to download");
  http::HttpSettings settings;
  if (const std::string named = value(environment, "HF_ENDPOINT"); !endpoint.empty() || !named.empty()) {
    settings.endpoint = endpoint.empty() ? named : endpoint;
    TITAN_RETURN_IF_ERROR(check_endpoint(settings.endpoint, endpoint.empty() ? "HF_ENDPOINT" : "--endpoint"));
  }
  while (absl::EndsWith(settings.endpoint, "/")) settings.endpoint.pop_back();
  TITAN_ASSIGN_OR_RETURN(settings.token, find_token(environment, token_file, warnings));
  settings.ca_file = first_value(environment, {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"});
  return settings;
}

}  // namespace titan::hub
