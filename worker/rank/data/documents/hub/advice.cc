#include "worker/rank/data/documents/hub/advice.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {

absl::Status with_advice(const absl::Status& status, const std::string& endpoint, const std::string& path) {
  const absl::Status named = annotate(status, path);
  if (status.ok() || !absl::IsUnavailable(status)) return named;
  return {status.code(), absl::StrCat(named.message(), "; the hub is ", endpoint,
                                      ": set HF_ENDPOINT to one that this node reaches, or dataset_path to a folder "
                                      "with the files")};
}

}  // namespace titan::data
