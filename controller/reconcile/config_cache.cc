#include "controller/reconcile/config_cache.h"

#include "absl/strings/str_cat.h"

namespace titan::reconcile {

ConfigCache::Config ConfigCache::find(const std::string& uid) {
  sync::Lock lock(mutex_);
  const auto found = by_uid_.find(uid);
  if (found == by_uid_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->config;
}

absl::StatusOr<ConfigCache::Config> ConfigCache::add(const std::string& uid, const std::string& text) {
  auto config =
      std::make_shared<const nlohmann::json>(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false));
  if (config->is_discarded())
    return absl::DataLossError(absl::StrCat("the configuration of job ", uid, " is not JSON"));
  sync::Lock lock(mutex_);
  if (const auto known = by_uid_.find(uid); known != by_uid_.end())
    return known->second->config;  // Another thread was faster.
  entries_.push_front({uid, config, text.size()});
  by_uid_[uid] = entries_.begin();
  bytes_ += text.size();
  while (bytes_ > capacity_ && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes;
    by_uid_.erase(entries_.back().uid);
    entries_.pop_back();
  }
  return config;
}

}  // namespace titan::reconcile
