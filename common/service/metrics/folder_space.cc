#include "common/service/metrics/folder_space.h"

#include <sys/statvfs.h>

#include <utility>

namespace titan::metrics {
namespace {

constexpr absl::Duration kOld = absl::Minutes(1);
constexpr char kState[] = "state";

}  // namespace

void FolderSpace::look(const std::string& kind, const std::set<std::string>& folders) {
  std::map<std::string, Seen> seen;
  for (const std::string& folder : folders) {
    struct statvfs disk {};
    const bool is_there = statvfs(folder.c_str(), &disk) == 0;
    if (!is_there && kind != kState) continue;
    const auto block = static_cast<double>(disk.f_frsize);  // Zero when statvfs failed.
    seen[folder] = {block * static_cast<double>(disk.f_bavail), block * static_cast<double>(disk.f_blocks),
                    clock_.monotonic()};
    if (kind != kState) continue;
    const sync::Lock lock(mutex_);
    double& size = sizes_.emplace(folder, 1).first->second;
    if (is_there) size = seen[folder].size;
    seen[folder].size = size;
  }
  const sync::Lock lock(mutex_);
  seen_[kind] = std::move(seen);
}

std::vector<prometheus::MetricFamily> FolderSpace::Collect() const {
  auto free =
      gauge_family("titan_folder_free_bytes", "Free bytes on the file system of a folder, for users other than root.");
  auto size = gauge_family("titan_folder_size_bytes", "Size of the file system of a folder.");
  const absl::Duration now = clock_.monotonic();
  {
    const sync::Lock lock(mutex_);
    for (const auto& [kind, folders] : seen_) {
      for (const auto& [folder, seen] : folders) {
        if (now - seen.at > kOld) continue;
        Labels labels = labels_;
        labels["kind"] = kind;
        labels["folder"] = folder;
        add_gauge(free, seen.free, labels);
        add_gauge(size, seen.size, labels);
      }
    }
  }
  if (free.metric.empty()) return {};
  return {std::move(free), std::move(size)};
}

std::vector<prometheus::MetricFamily> LocalFolderSpace::Collect() const {
  space_.look(kind_, {folder_});
  return space_.Collect();
}

}  // namespace titan::metrics
