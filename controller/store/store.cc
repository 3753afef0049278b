#include "controller/store/store.h"

namespace titan::store {

absl::StatusOr<std::vector<Record>> scan_all(const Store& store, const std::string& prefix) {
  constexpr int kPage = 1000;
  std::vector<Record> all;
  std::string after;
  while (true) {
    absl::StatusOr<std::vector<Record>> page = store.scan(prefix, after, kPage);
    if (!page.ok()) return page.status();
    const bool last = static_cast<int>(page->size()) < kPage;
    for (Record& record : *page) all.push_back(std::move(record));
    if (last) return all;
    after = all.back().key;
  }
}

std::string prefix_end(std::string prefix) {
  if (prefix.empty()) return "\x7f";
  ++prefix.back();
  return prefix;
}

}  // namespace titan::store
