#include "worker/node/daemon/granted_folders.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/storage/real_path.h"

namespace titan::daemon {
namespace {

using node::Refusal;

Refusal check_path(const std::string& what, const std::string& path, const std::vector<std::string>& folders,
                   const char* flag) {
  const absl::StatusOr<std::string> real = storage::real_path(path);
  if (real.ok() && storage::lies_below(*real, folders)) return {};
  const std::string why = real.ok() ? *real == path ? "" : absl::StrCat(" leads to ", *real, ", which")
                                    : absl::StrCat(" (", real.status().message(), ")");
  return {kNotAllowed,
          absl::StrCat(what, " ", path, why, " is not in a folder that this node grants to jobs: ",
                       folders.empty() ? "none" : absl::StrJoin(folders, ", "), "; choose one below them, or ",
                       "have its operator add ", flag, " to titan-worker")};
}

std::string library_of(const nlohmann::json& config) {
  const auto part = config.find("experimental");
  if (part == config.end() || !part->is_object()) return "";
  const auto library = part->find("custom_import");
  return library != part->end() && library->is_string() ? library->get<std::string>() : "";
}

}  // namespace

std::optional<std::vector<std::string>> plugin_folders(const Grants& grants) {
  if (!grants.plugin_folders.empty() || grants.one_user) return grants.plugin_folders;
  if (!grants.folders.empty()) return grants.folders;
  return std::nullopt;
}

Refusal check_folders(const node::AttemptRecord& record, const nlohmann::json& config, const Grants& grants) {
  if (!grants.folders.empty() && !record.dump_folder.empty()) {
    Refusal refusal =
        check_path("the dump folder (job.dump_folder)", record.dump_folder, grants.folders, "--allow-folder");
    if (refusal) return refusal;
  }
  const std::string library = config.is_object() ? library_of(config) : "";
  const std::optional<std::vector<std::string>> folders = plugin_folders(grants);
  if (library.empty() || !folders) return {};
  return check_path("the library (experimental.custom_import)", library, *folders, "--plugin-folder");
}

}  // namespace titan::daemon
