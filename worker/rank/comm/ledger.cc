#include "worker/rank/comm/ledger.h"

namespace titan::comm {

LedgerCounts subtract(const LedgerCounts& after, const LedgerCounts& before) {
  LedgerCounts difference;
  for (const auto& [key, entry] : after) {
    LedgerEntry old;
    if (const auto found = before.find(key); found != before.end()) old = found->second;
    const LedgerEntry delta{entry.calls - old.calls, entry.bytes - old.bytes};
    if (delta.calls != 0) difference[key] = delta;
  }
  return difference;
}

void Ledger::add(const std::string& group, const char* operation, int64_t bytes) {
  {
    sync::Lock lock(mutex_);
    LedgerEntry& entry = counts_[group + "/" + operation];
    ++entry.calls;
    entry.bytes += bytes;
  }
  const int64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (auto* mirror = sequence_mirror_.load(std::memory_order_relaxed)) {
    mirror->store(sequence, std::memory_order_relaxed);
  }
}

LedgerCounts Ledger::counts() const {
  sync::Lock lock(mutex_);
  return counts_;
}

}  // namespace titan::comm
