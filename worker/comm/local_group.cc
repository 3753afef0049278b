#include "worker/comm/local_group.h"

#include <c10/util/Exception.h>

#include "worker/comm/group.h"

namespace titan::comm {
namespace {

[[noreturn]] void fail_with(const std::string& why) { C10_THROW_ERROR(DistBackendError, why); }

}  // namespace

void LocalGroup::check_usable() {
  if (!broken_.empty()) fail_with(broken_);
}

std::shared_ptr<LocalOperation> LocalGroup::collective(int rank, const std::string& signature, LocalPart part,
                                                       Execute execute) {
  std::shared_ptr<LocalOperation> operation;
  {
    sync::Lock lock(mutex_);
    check_usable();
    const int64_t number = sequence_[rank]++;
    std::shared_ptr<LocalOperation>& slot = collectives_[number];
    if (!slot) {
      slot = std::make_shared<LocalOperation>();
      slot->signature = signature;
      for (int member = 0; member < size_; ++member) slot->ranks.push_back(member);
      slot->parts.resize(size_);
      slot->arrived.resize(size_);
      slot->execute = std::move(execute);
    }
    operation = slot;
    meet(*operation, rank, signature, std::move(part));
    if (!operation->running) return operation;
    collectives_.erase(number);
  }
  run(*operation);
  return operation;
}

std::shared_ptr<LocalOperation> LocalGroup::message(int source, int destination, int tag, bool sending,
                                                    const std::string& signature, LocalPart part) {
  std::shared_ptr<LocalOperation> operation;
  {
    sync::Lock lock(mutex_);
    check_usable();
    Channel& channel = channels_[{source, destination, tag}];
    if (channel.waiting.empty() || channel.senders_wait == sending) {
      operation = std::make_shared<LocalOperation>();
      operation->signature = signature;
      operation->ranks = {source, destination};
      operation->parts.resize(2);
      operation->arrived.resize(2);
      operation->execute = [](std::vector<LocalPart>& parts) {
        parts[1].output.view({-1}).copy_(parts[0].input.view({-1}));
      };
      channel.senders_wait = sending;
      channel.waiting.push_back(operation);
    } else {
      operation = channel.waiting.front();
      channel.waiting.pop_front();
    }
    meet(*operation, sending ? 0 : 1, signature, std::move(part));
    if (!operation->running) return operation;
  }
  run(*operation);
  return operation;
}

// Adds one rank's part; the operation is `running` once all are there. Throws when it cannot succeed.
void LocalGroup::meet(LocalOperation& operation, size_t place, const std::string& signature, LocalPart part) {
  std::string error;
  operation.running = true;
  for (size_t i = 0; i < operation.ranks.size(); ++i) {
    if (i == place) continue;
    const std::string other = "rank " + std::to_string(operation.ranks[i]) + " of the group";
    if (!operation.arrived[i]) {
      operation.running = false;
      if (gone_[operation.ranks[i]]) error = other + " is gone";
    } else if (signature != operation.signature && error.empty()) {
      error = "rank " + std::to_string(operation.ranks[place]) + " calls " + signature + " but " + other + " calls " +
              operation.signature + ": all ranks must issue the same operations in the same order";
    }
  }
  if (!error.empty()) {
    operation.running = false;
    operation.error = error;
    operation.parts.clear();
    fail_locked(error);
    fail_with(error);
  }
  operation.parts[place] = std::move(part);
  operation.arrived[place] = true;
}

void LocalGroup::run(LocalOperation& operation) {
  std::string error;
  try {
    // As if a library had written the memory: no graph, and no version counter of anybody's tensor changes.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    operation.execute(operation.parts);
  } catch (const std::exception& failure) {
    error = describe(failure);
  }
  sync::Lock lock(mutex_);
  operation.parts.clear();  // Nobody's memory waits for the others to look.
  operation.execute = nullptr;
  operation.running = false;
  operation.done = error.empty();
  operation.error = error;
  if (!error.empty()) fail_locked(error);
  changed_.notify_all();
}

bool LocalGroup::done(const LocalOperation& operation) {
  sync::Lock lock(mutex_);
  return operation.done || !operation.error.empty();
}

void LocalGroup::wait(LocalOperation& operation, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  sync::Lock lock(mutex_);
  while (!operation.done && operation.error.empty()) {
    // While its tensors are being written nobody may leave, and the end is near.
    if (operation.running) {
      changed_.wait(mutex_);
    } else if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout && !operation.done &&
               !operation.running && operation.error.empty()) {
      fail_locked(missing(operation) + " took no part within " + std::to_string(timeout.count()) + " ms");
    }
  }
  if (!operation.done) fail_with(operation.error);
}

std::string LocalGroup::missing(const LocalOperation& operation) {
  std::string ranks;
  for (size_t i = 0; i < operation.ranks.size(); ++i) {
    if (operation.arrived[i]) continue;
    ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(operation.ranks[i]);
  }
  return ranks + " of the group";
}

void LocalGroup::fail(const std::string& why) {
  sync::Lock lock(mutex_);
  fail_locked(why);
}

void LocalGroup::fail_locked(const std::string& why) {
  if (broken_.empty()) broken_ = why;
  const auto end = [this](LocalOperation& operation) {
    operation.error = broken_;
    operation.parts.clear();
  };
  for (auto& [number, operation] : collectives_) end(*operation);
  for (auto& [key, channel] : channels_) {
    for (auto& operation : channel.waiting) end(*operation);
  }
  collectives_.clear();
  channels_.clear();
  changed_.notify_all();
}

void LocalGroup::leave(int rank) {
  sync::Lock lock(mutex_);
  gone_[rank] = true;
  bool needed = false;
  const auto needs = [rank](const LocalOperation& operation) {
    for (size_t i = 0; i < operation.ranks.size(); ++i) {
      if (operation.ranks[i] == rank && !operation.arrived[i]) return true;
    }
    return false;
  };
  for (const auto& [number, operation] : collectives_) needed |= needs(*operation);
  for (const auto& [key, channel] : channels_) {
    for (const auto& operation : channel.waiting) needed |= needs(*operation);
  }
  if (needed) fail_locked("rank " + std::to_string(rank) + " of the group is gone");
}

}  // namespace titan::comm
