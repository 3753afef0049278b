#include "controller/store/store.h"

#include <future>

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

absl::StatusOr<int64_t> purge(Store& store, const std::string& prefix, int64_t until) {
  constexpr int kPage = 500;
  if (prefix.empty()) return absl::InvalidArgumentError("purge: an empty prefix would erase everything");
  int64_t erased = 0;
  std::string after;
  while (true) {
    const absl::StatusOr<std::vector<Record>> page = store.scan(prefix, after, kPage);
    if (!page.ok()) return page.status();
    Transaction transaction;
    for (const Record& record : *page) {
      if (record.revision <= until) transaction.mutations.push_back({record.key, std::nullopt, record.revision});
    }
    if (!transaction.mutations.empty()) {
      const auto count = static_cast<int64_t>(transaction.mutations.size());
      std::promise<absl::StatusOr<int64_t>> committed;
      store.commit(std::move(transaction),
                   [&committed](const absl::StatusOr<int64_t>& result) { committed.set_value(result); });
      const absl::StatusOr<int64_t> result = committed.get_future().get();
      if (absl::IsAborted(result.status())) continue;  // One of them was written meanwhile: look again.
      if (!result.ok()) return result.status();
      erased += count;
    }
    if (static_cast<int>(page->size()) < kPage) return erased;
    after = page->back().key;
  }
}

std::string prefix_end(std::string prefix) {
  if (prefix.empty()) return "\x7f";
  ++prefix.back();
  return prefix;
}

}  // namespace titan::store
