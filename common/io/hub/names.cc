#include "common/io/hub/names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text/message_text.h"

namespace titan::hub {
namespace {

constexpr size_t kMaxNameLength = 1024;  // Limit for a file name with its folders.
constexpr size_t kMaxPartLength = 255;   // Limit for one component of a path.
constexpr size_t kMaxIdLength = 96;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool is_repo_part(const std::string& part) {
  return !part.empty() && part[0] != '.' && part[0] != '-' && std::all_of(part.begin(), part.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

bool is_path_part(const std::string& part) {
  return !part.empty() && part.size() <= kMaxPartLength && part != "." && part != ".." &&
         std::none_of(part.begin(), part.end(), is_control);
}

}  // namespace

std::string Repo::name() const { return id.substr(id.find('/') + 1); }

absl::StatusOr<Repo> parse_repo(RepoKind kind, const std::string& id) {
  const std::vector<std::string> parts = absl::StrSplit(id, '/');
  const bool good =
      id.size() <= kMaxIdLength && parts.size() <= 2 && std::all_of(parts.begin(), parts.end(), is_repo_part);
  if (good) return Repo{kind, id};
  return absl::InvalidArgumentError(
      absl::StrCat("'", text::printable_name(id),
                   "' is not a repository: write ORG/NAME as in its page's address, such as Qwen/Qwen3-0.6B"));
}

absl::Status check_revision(const std::string& revision) {
  const bool good = !revision.empty() && revision.size() <= kMaxPartLength &&
                    std::none_of(revision.begin(), revision.end(), is_control) && !absl::StrContains(revision, "..");
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--revision is '", text::printable_name(revision), "': it must be a branch, a tag or a commit"));
}

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

bool is_commit(const std::string& revision) { return is_hex(revision, 40); }

absl::Status check_file_name(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  if (name.size() <= kMaxNameLength && std::all_of(parts.begin(), parts.end(), is_path_part)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the server lists a file '", text::printable_name(name),
                                                 "', which is not a safe path below a folder"));
}

namespace {

constexpr char kScheme[] = "hf://", kDatasets[] = "datasets/";

absl::Status not_a_path() {
  return absl::InvalidArgumentError(
      "is not a dataset on a hub: write hf://datasets/ORG/NAME/PLACE, with a folder, a glob or a file for PLACE, and "
      "@REVISION after NAME for another branch or tag (without slashes) or a commit");
}

}  // namespace

bool is_hub_path(std::string_view path) { return path.starts_with(kScheme); }

absl::StatusOr<DatasetPath> parse_dataset_path(const std::string& path) {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, kScheme) || !absl::ConsumePrefix(&rest, kDatasets)) return not_a_path();
  const size_t name = rest.find('/');
  if (name == absl::string_view::npos) return not_a_path();
  const size_t end = std::min(rest.find('/', name + 1), rest.size());
  const std::string id(rest.substr(0, end));
  const size_t at = std::min(id.find('@'), id.size());
  const absl::StatusOr<Repo> repo = parse_repo(RepoKind::kDataset, id.substr(0, at));
  if (!repo.ok()) return not_a_path();
  DatasetPath out{.repo = *repo, .place = std::string(rest.substr(std::min(end + 1, rest.size())))};
  if (at < id.size()) out.revision = id.substr(at + 1);
  if (absl::EndsWith(out.place, "/")) out.place.pop_back();
  const bool good = check_revision(out.revision).ok() && (out.place.empty() || check_file_name(out.place).ok());
  if (!good) return not_a_path();
  return out;
}

std::string to_text(const DatasetPath& path) {
  const std::string place = path.place.empty() ? "" : "/" + path.place;
  return absl::StrCat(kScheme, kDatasets, path.repo.id, "@", path.revision, place);
}

std::string commit_of(const std::string& path) {
  const absl::StatusOr<DatasetPath> parsed = parse_dataset_path(path);
  return parsed.ok() && is_commit(parsed->revision) ? parsed->revision : "";
}

std::string folder_of(const std::string& place) {
  const std::string fixed = place.substr(0, place.find_first_of("*?["));
  const size_t slash = fixed.rfind('/');
  return slash == std::string::npos ? "" : fixed.substr(0, slash);
}

}  // namespace titan::hub
