#include "common/metrics/folder_space.h"

#include <sys/statvfs.h>

#include <utility>

namespace titan::metrics {
namespace {

constexpr absl::Duration kOld = absl::Minutes(1);

}  // namespace

void FolderSpace::look(const std::string& kind, const std::set<std::string>& folders) {
  std::map<std::string, Seen> seen;
  for (const std::string& folder : folders) {
    struct statvfs disk {};
    if (statvfs(folder.c_str(), &disk) != 0) continue;
    const auto block = static_cast<double>(disk.f_frsize);
    seen[folder] = {block * static_cast<double>(disk.f_bavail), block * static_cast<double>(disk.f_blocks),
                    clock_.monotonic()};
  }
  const sync::Lock lock(mutex_);
  seen_[kind] = std::move(seen);
}

std::vector<prometheus::MetricFamily> FolderSpace::Collect() const {
  auto free =
      gauge_family("titan_folder_free_bytes", "Room on the file system of a folder, for those who are not root.");
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

std::vector<prometheus::MetricFamily> OwnFolder::Collect() const {
  FolderSpace space;
  space.look(kind_, {folder_});
  return space.Collect();
}

}  // namespace titan::metrics
