#include "common/io/s3/settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/io/http/urls.h"

namespace titan::s3 {
namespace {

constexpr size_t kMaxFile = 1 << 20;

std::string first_value(const http::Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = environment.find(name);
    if (found != environment.end() && !found->second.empty()) return found->second;
  }
  return "";
}

struct ProfileFile {
  std::string path;
  Sections sections;  // Empty when the file is missing.
  bool everybody_reads = false;
};

absl::StatusOr<ProfileFile> read_profiles(const http::Environment& environment, const char* variable,
                                          const char* name) {
  ProfileFile out{first_value(environment, {variable}), {}};
  if (out.path.empty()) {
    const std::string home = first_value(environment, {"HOME"});
    if (home.empty()) return out;
    out.path = absl::StrCat(home, "/.aws/", name);
  }
  const int file = open(out.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return out;
  if (file < 0) return errno_status(errno, absl::StrCat("read ", out.path));
  const absl::Cleanup close_it = [file] { close(file); };
  struct stat about {};
  if (fstat(file, &about) != 0) return errno_status(errno, absl::StrCat("read ", out.path));
  out.everybody_reads = (about.st_mode & 0007) != 0;
  std::string text(kMaxFile, '\0');
  const ssize_t size = read(file, text.data(), text.size());
  if (size < 0) return errno_status(errno, absl::StrCat("read ", out.path));
  text.resize(static_cast<size_t>(size));
  out.sections = parse_sections(text);
  return out;
}

std::string profile_of(const http::Environment& environment) {
  const std::string named = first_value(environment, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  return named.empty() ? "default" : named;
}

// In the settings file, a profile's section is "[profile NAME]", except for the default one.
std::string setting(const ProfileFile& file, const std::string& profile, const std::string& name) {
  for (const std::string& title : {absl::StrCat("profile ", profile), profile}) {
    const auto section = file.sections.find(title);
    if (section == file.sections.end()) continue;
    if (const auto found = section->second.find(name); found != section->second.end()) return found->second;
  }
  return "";
}

// The text becomes part of header lines: nothing in it may end one.
bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

absl::StatusOr<Credentials> checked(Credentials made, const std::string& from) {
  // libcurl expects "KEY:SECRET" and splits it at the first ':'.
  const bool good = is_word(made.key_id) && !absl::StrContains(made.key_id, ":") && is_word(made.secret) &&
                    (made.session_token.empty() || is_word(made.session_token));
  if (good) return made;
  return absl::InvalidArgumentError(
      absl::StrCat(from, " must hold both an access key's id and its secret, each one word"));
}

absl::Status check_endpoint(const std::string& endpoint, bool plain_allowed) {
  if (http::origin(endpoint).empty() || endpoint.find_first_of("?# ") != std::string::npos)
    return absl::InvalidArgumentError(
        "AWS_ENDPOINT_URL must be https://HOST or http://HOST:PORT, without a user");  // It may hold a password.
  if (absl::StartsWith(http::origin(endpoint), "https:") || plain_allowed || http::is_loopback(endpoint))
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "AWS_ENDPOINT_URL: data sent to ", text::printable_name(http::origin(endpoint)),
      " could be read or changed in transit: use https, or set TITAN_RANK_S3_PLAIN_HTTP=1 if you trust that network"));
}

}  // namespace

Sections parse_sections(const std::string& text) {
  Sections out;
  std::map<std::string, std::string>* section = nullptr;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const size_t end = line.find(']');
      section = end == line.npos ? nullptr : &out[std::string(absl::StripAsciiWhitespace(line.substr(1, end - 1)))];
      continue;
    }
    const size_t equals = line.find('=');
    const bool nested = raw.front() == ' ' || raw.front() == '\t';  // Belongs to a nested setting.
    if (section == nullptr || equals == line.npos || nested) continue;
    (*section)[absl::AsciiStrToLower(absl::StripAsciiWhitespace(line.substr(0, equals)))] =
        std::string(absl::StripAsciiWhitespace(line.substr(equals + 1)));
  }
  return out;
}

absl::StatusOr<S3Settings> settings_from(const http::Environment& environment) {
  TITAN_ASSIGN_OR_RETURN(const ProfileFile file, read_profiles(environment, "AWS_CONFIG_FILE", "config"));
  const std::string profile = profile_of(environment);
  S3Settings settings;
  settings.endpoint = first_value(environment, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (settings.endpoint.empty()) settings.endpoint = setting(file, profile, "endpoint_url");
  while (absl::EndsWith(settings.endpoint, "/")) settings.endpoint.pop_back();
  if (!settings.endpoint.empty()) {
    TITAN_RETURN_IF_ERROR(
        check_endpoint(settings.endpoint, first_value(environment, {"TITAN_RANK_S3_PLAIN_HTTP"}) == "1"));
  }
  settings.region = first_value(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (settings.region.empty()) settings.region = setting(file, profile, "region");
  if (settings.region.empty() && !settings.endpoint.empty()) settings.region = "us-east-1";
  const bool named = std::all_of(settings.region.begin(), settings.region.end(),
                                 [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
  if (settings.region.empty() || !named)
    return absl::FailedPreconditionError(
        "an s3:// path needs AWS_REGION (such as eu-central-1), or AWS_ENDPOINT_URL for another store than AWS's");
  settings.ca_file = first_value(environment, {"AWS_CA_BUNDLE", "SSL_CERT_FILE"});
  return settings;
}

absl::StatusOr<Credentials> credentials_from(const http::Environment& environment) {
  Credentials made{first_value(environment, {"AWS_ACCESS_KEY_ID"}), first_value(environment, {"AWS_SECRET_ACCESS_KEY"}),
                   first_value(environment, {"AWS_SESSION_TOKEN"})};
  if (!made.key_id.empty() || !made.secret.empty())
    return checked(std::move(made), "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY");
  TITAN_ASSIGN_OR_RETURN(const ProfileFile file,
                         read_profiles(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"));
  const std::string profile = profile_of(environment);
  const auto section = file.sections.find(profile);
  if (section == file.sections.end())
    return absl::UnauthenticatedError(absl::StrCat(
        "an s3:// path needs credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile [", profile,
        "] in ", file.path.empty() ? "~/.aws/credentials" : file.path, ", as the user who runs the ranks"));
  if (file.everybody_reads)
    return absl::PermissionDeniedError(
        absl::StrCat(file.path,
                     " can be read by everybody: chmod 600 it, and replace its keys if others may have read "
                     "them"));
  const auto value = [&](const char* name) {
    const auto found = section->second.find(name);
    return found == section->second.end() ? std::string() : found->second;
  };
  return checked({value("aws_access_key_id"), value("aws_secret_access_key"), value("aws_session_token")},
                 absl::StrCat("the profile [", profile, "] in ", file.path));
}

}  // namespace titan::s3
