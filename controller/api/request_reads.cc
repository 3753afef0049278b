#include "controller/api/request_reads.h"

#include <algorithm>
#include <utility>

namespace titan::api {

void RequestReads::enter(const std::string& actor, std::shared_ptr<const Read> read) {
  {
    const sync::Lock lock(mutex_);
    OfCaller& caller = callers_[actor];
    if (caller.begun.size() >= options_.of_a_caller) return caller.waiting.push_back(std::move(read));
    caller.begun.push_back({read, clock_.monotonic()});
  }
  read->begin();
}

void RequestReads::leave(const std::string& actor, const Read* read) {
  std::shared_ptr<const Read> next;
  {
    const sync::Lock lock(mutex_);
    const auto found = callers_.find(actor);
    OfCaller& caller = found->second;
    std::erase_if(caller.begun, [read](const Begun& one) { return one.read.get() == read; });
    if (!caller.waiting.empty()) {
      next = std::move(caller.waiting.front());
      caller.waiting.pop_front();
      caller.begun.push_back({next, clock_.monotonic()});
    } else if (caller.begun.empty()) {
      callers_.erase(found);
    }
  }
  if (next != nullptr) next->begin();
}

void RequestReads::look() {
  std::vector<std::shared_ptr<const Read>> late;
  {
    const sync::Lock lock(mutex_);
    for (auto& [actor, caller] : callers_) {
      if (caller.waiting.empty()) continue;
      for (Begun& one : caller.begun) {
        if (clock_.monotonic() - one.since <= options_.patience) continue;
        late.push_back(one.read);
        one.since = absl::InfiniteDuration();  // Once.
      }
    }
  }
  for (const auto& read : late) read->give_up();
}

}  // namespace titan::api
