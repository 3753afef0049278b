#include "controller/api/update.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"
#include "controller/api/convert.h"
#include "controller/core/labels.h"

namespace titan::api {
namespace {

constexpr int kMostPriority = 1'000'000;  // As scheduling.priority.

// AIP-134: without a mask, what is set; "*" is everything that can be updated.
std::vector<std::string> paths_of(const v1::UpdateJobRequest& request) {
  std::vector<std::string> paths(request.update_mask().paths().begin(), request.update_mask().paths().end());
  const v1::Job& job = request.job();
  if (paths.empty()) {
    if (job.spec().priority() != 0) paths.push_back("spec.priority");
    if (!job.title().empty()) paths.push_back("title");
    if (!job.labels().empty()) paths.push_back("labels");
  }
  if (paths == std::vector<std::string>{"*"}) return {"spec.priority", "title", "labels"};
  return paths;
}

// AIP-161 writes keys with dots in backquotes.
std::string label_key(absl::string_view path) {
  absl::string_view key = absl::StripPrefix(path, "labels.");
  if (key.size() > 1 && key.front() == '`' && key.back() == '`') key = key.substr(1, key.size() - 2);
  return std::string(key);
}

}  // namespace

absl::StatusOr<core::UpdateJob> read_update(const v1::UpdateJobRequest& request) {
  const v1::Job& job = request.job();
  core::UpdateJob update;
  std::vector<rpc::FieldViolation> unknown;
  core::Labels labels;  // Those that are set.
  for (const std::string& path : paths_of(request)) {
    if (path == "spec.priority") {
      update.priority = job.spec().priority();
    } else if (path == "title") {
      update.title = job.title();
    } else if (path == "labels") {
      labels.insert(job.labels().begin(), job.labels().end());
      update.all_labels = core::Labels(job.labels().begin(), job.labels().end());
    } else if (absl::StartsWith(path, "labels.")) {
      const std::string key = label_key(path);
      const auto value = job.labels().find(key);
      if (value != job.labels().end()) labels[key] = value->second;
      update.labels[key] = value != job.labels().end() ? std::optional<std::string>(value->second) : std::nullopt;
    } else {
      unknown.push_back({"update_mask", absl::StrCat("'", path,
                                                     "' cannot be updated; spec.priority, title, labels and "
                                                     "labels.KEY can")});
    }
  }
  if (!unknown.empty()) return rpc::bad_request("UPDATE_MASK_INVALID", unknown);
  TITAN_RETURN_IF_ERROR(core::check_labels(labels, "job.labels"));
  if (update.priority && (*update.priority < -kMostPriority || *update.priority > kMostPriority)) {
    return rpc::bad_request("SPEC_INVALID",
                            {{"job.spec.priority", absl::StrCat("is ", *update.priority, ", but must be between ",
                                                                -kMostPriority, " and ", kMostPriority)}});
  }
  if (update.title && update.title->size() > kLongestTitle) {
    return rpc::bad_request("TITLE_INVALID", {too_long("job.title", update.title->size(), kLongestTitle)});
  }
  update.etag = request.etag().empty() ? job.etag() : request.etag();
  return update;
}

}  // namespace titan::api
