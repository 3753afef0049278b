#include "worker/rank/comm/local_group.h"

#include <c10/util/Exception.h>

#include "worker/rank/comm/group.h"

namespace titan::comm {
namespace {

[[noreturn]] void fail_with(const LocalError& trouble) {
  TORCH_CHECK_VALUE(!trouble.disagreement, trouble.why);
  C10_THROW_ERROR(DistBackendError, trouble.why);
}

std::string member(int rank) { return "rank " + std::to_string(rank) + " of the group"; }

}  // namespace

void LocalGroup::check_usable() {
  if (broken_) fail_with(broken_);
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
  run(*operation, rank);
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
  run(*operation, sending ? source : destination);
  return operation;
}

// Adds one rank's part. The operation is `running` when all parts are there. Throws if it cannot succeed.
void LocalGroup::meet(LocalOperation& operation, size_t place, const std::string& signature, LocalPart part) {
  LocalError trouble;
  operation.running = true;
  for (size_t i = 0; i < operation.ranks.size(); ++i) {
    if (i == place) continue;
    const std::string other = member(operation.ranks[i]);
    if (!operation.arrived[i]) {
      operation.running = false;
      if (gone_[operation.ranks[i]]) trouble = {other + " is gone"};
    } else if (signature != operation.signature && !trouble) {
      trouble = {"rank " + std::to_string(operation.ranks[place]) + " calls " + signature + " but " + other +
                     " calls " + operation.signature + kNotTheSame,
                 /*disagreement=*/true};
    }
  }
  if (trouble) {
    operation.running = false;
    operation.trouble = trouble;
    operation.parts.clear();
    fail_locked(trouble);
    fail_with(trouble);
  }
  operation.parts[place] = std::move(part);
  operation.arrived[place] = true;
}

void LocalGroup::run(LocalOperation& operation, int rank) {
  LocalError trouble;
  std::exception_ptr own;  // The rank that caused the exception gets the original one.
  try {
    // Runs as if a library wrote the memory: it records no graph and changes no tensor's version counter.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    operation.execute(operation.parts);
  } catch (const c10::ValueError& disagreement) {
    trouble = {describe(disagreement), /*disagreement=*/true};
    own = std::current_exception();
  } catch (const std::exception& failure) {
    trouble = {member(rank) + " has failed: " + describe(failure)};
    own = std::current_exception();
  }
  {
    sync::Lock lock(mutex_);
    operation.parts.clear();  // Releases memory now, without waiting for the other ranks.
    operation.execute = nullptr;
    operation.running = false;
    operation.done = !trouble;
    operation.trouble = trouble;
    if (trouble) fail_locked(trouble);
    changed_.notify_all();
  }
  if (own) std::rethrow_exception(own);
}

bool LocalGroup::done(const LocalOperation& operation) {
  sync::Lock lock(mutex_);
  return operation.done || operation.trouble;
}

void LocalGroup::wait(LocalOperation& operation, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  sync::Lock lock(mutex_);
  while (!operation.done && !operation.trouble) {
    // No rank may stop waiting while the operation writes its tensors, which ends soon.
    if (operation.running) {
      changed_.wait(mutex_);
    } else if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout && !operation.done &&
               !operation.running && !operation.trouble) {
      fail_locked({missing(operation) + kTookNoPart + std::to_string(timeout.count()) + " ms"});
    }
  }
  if (!operation.done) fail_with(operation.trouble);
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
  fail_locked({why});
}

void LocalGroup::fail_locked(LocalError trouble) {
  if (!broken_) broken_ = std::move(trouble);
  const auto end = [this](LocalOperation& operation) {
    operation.trouble = broken_;
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
  if (needed) fail_locked({member(rank) + " is gone"});
}

}  // namespace titan::comm
