#include "controller/api/fanout.h"

#include <algorithm>
#include <utility>

namespace titan::api {
namespace {

constexpr int kBatch = 1024;
constexpr int kForgetAfter = 1000;

using Waker = reconcile::Waker;

// Appends the readers that still exist to `into` and drops the others.
void take(std::vector<std::weak_ptr<Waker>>& readers, std::vector<std::shared_ptr<Waker>>& into) {
  std::erase_if(readers, [&](const std::weak_ptr<Waker>& weak) {
    std::shared_ptr<Waker> reader = weak.lock();
    if (reader == nullptr) return true;
    into.push_back(std::move(reader));
    return false;
  });
}

}  // namespace

Fanout::Fanout(const reconcile::Published& published) : published_(published), cursor_(published.end()) {
  thread_ = std::thread([this] { run(); });
}

Fanout::~Fanout() {
  {
    sync::Lock lock(mutex_);
    ending_ = true;
  }
  woken_.notify_all();
  thread_.join();
}

void Fanout::add(const std::string& job, std::weak_ptr<Waker> reader) {
  sync::Lock lock(mutex_);
  (job.empty() ? all_readers_ : readers_by_job_[job]).push_back(std::move(reader));
  if (++added_ >= kForgetAfter) remove_expired();
}

void Fanout::remove_expired() {
  added_ = 0;
  const auto gone = [](const std::weak_ptr<Waker>& reader) { return reader.expired(); };
  for (auto& [job, readers] : readers_by_job_) std::erase_if(readers, gone);
  absl::erase_if(readers_by_job_, [](const auto& item) { return item.second.empty(); });
}

void Fanout::wake() {
  {
    sync::Lock lock(mutex_);
    news_ = true;
  }
  woken_.notify_one();
}

void Fanout::run() {
  while (true) {
    {
      sync::Lock lock(mutex_);
      woken_.wait(mutex_, [this] { return news_ || ending_; });
      if (ending_) return;
      news_ = false;
    }
    for (const std::shared_ptr<Waker>& reader : affected_readers()) reader->wake();
  }
}

std::vector<std::shared_ptr<Waker>> Fanout::affected_readers() {
  std::vector<std::string> changed;
  bool everyone = false, more = true;
  while (more) {
    const absl::StatusOr<reconcile::Published::Batch> batch = published_.changes(cursor_, kBatch);
    everyone = everyone || !batch.ok();
    cursor_ = batch.ok() ? batch->next_cursor : published_.end();
    more = batch.ok() && batch->views.size() == kBatch;
    if (!batch.ok()) continue;
    for (const reconcile::PublishedViewPtr& view : batch->views) changed.push_back(view->record->name);
  }
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  std::vector<std::shared_ptr<Waker>> readers;
  sync::Lock lock(mutex_);
  take(all_readers_, readers);
  if (everyone) {
    for (auto& [job, of_this] : readers_by_job_) take(of_this, readers);
    return readers;
  }
  for (const std::string& job : changed) {
    if (const auto found = readers_by_job_.find(job); found != readers_by_job_.end()) take(found->second, readers);
  }
  return readers;
}

}  // namespace titan::api
