#include "controller/cli/job_names.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::cli {
namespace {

constexpr char kDefault[] = "default";

std::string& given() {
  static auto* const project = new std::string;
  return *project;
}

}  // namespace

void set_project(const std::string& project) { given() = project; }

bool project_is_given() { return !given().empty(); }

const std::string& project() {
  static const std::string none = kDefault;
  return given().empty() ? none : given();
}

std::string full_name(const std::string& word) {
  const std::vector<std::string> parts = absl::StrSplit(word, '/');
  if (parts.size() == 1 && !word.empty()) return absl::StrCat("projects/", project(), "/jobs/", word);
  if (parts.size() == 2 && !parts[0].empty() && !parts[1].empty())
    return absl::StrCat("projects/", parts[0], "/jobs/", parts[1]);
  return word;
}

std::string short_name(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  if (parts.size() != 4 || parts[0] != "projects" || parts[2] != "jobs") return name;
  return parts[1] == project() ? parts[3] : absl::StrCat(parts[1], "/", parts[3]);
}

}  // namespace titan::cli
