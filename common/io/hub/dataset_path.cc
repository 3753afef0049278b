#include "common/io/hub/dataset_path.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace titan::hub {
namespace {

constexpr char kScheme[] = "hf://", kDatasets[] = "datasets/";

absl::Status not_a_path() {
  return absl::InvalidArgumentError(
      "names no dataset of a hub: write hf://datasets/ORG/NAME/PLACE, with a folder, a glob or a file for PLACE, and "
      "@REVISION behind NAME for another branch or tag (without slashes) or a commit");
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
