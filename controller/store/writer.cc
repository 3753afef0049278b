#include "controller/store/writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/service/failpoint/failpoint.h"

namespace titan::store {
namespace {

failpoint::Failpoint queued_point("writer.queued"), taken_point("writer.taken"), answer_point("writer.answer"),
    answered_point("writer.answered");

constexpr char kRefusal[] = "the controller's store is full or too busy; nothing was changed";

int64_t bytes_of(const Transaction& transaction) {
  int64_t bytes = 0;
  for (const Mutation& mutation : transaction.mutations) {
    bytes += static_cast<int64_t>(mutation.key.size() + (mutation.value ? mutation.value->size() : 0));
  }
  return bytes;
}

absl::Status unavailable(const absl::Status& failed) {
  return absl::UnavailableError(failed.ok() ? "store: closing" : failed.message());
}

void answer(const Committed& done, const absl::StatusOr<int64_t>& result) {
  if (done) done(result);
}

}  // namespace

Writer::Writer(WriterOptions options, Backend backend) : options_(options), backend_(std::move(backend)) {}

void Writer::start() {
  thread_ = std::thread([this] { loop(); });
  refusing_ = std::thread([this] { refuse_loop(); });
  answering_ = std::thread([this] { answer_loop(); });
}

void Writer::close() {
  {
    sync::Lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (refusing_.joinable()) refusing_.join();
  if (answering_.joinable()) answering_.join();
}

void Writer::commit(Transaction transaction, Committed done) {
  Queued queued{std::move(transaction), std::move(done)};
  queued.bytes = bytes_of(queued.transaction);
  const absl::Status failed = place(queued);
  if (!failed.ok()) return answer(queued.done, failed);
  queued_point.pass();
  wake_.notify_one();
}

// Puts it into the queue or among the refused. Unavailable: neither, and `queued` is unchanged.
absl::Status Writer::place(Queued& queued) {
  sync::Lock lock(mutex_);
  if (ended_ || closing_) return unavailable(failed_);
  const int64_t waiting = static_cast<int64_t>(queue_.size()) + num_unanswered_;
  const bool no_space = full_ || waiting >= options_.queue_limit || queued_bytes_ >= options_.queue_bytes;
  if (no_space && queued.transaction.when_full == WhenFull::kRefuse) {
    refused_.push_back(std::move(queued.done));
    refuse_wake_.notify_one();
  } else {
    queued_bytes_ += queued.bytes;
    queue_.push_back(std::move(queued));
  }
  return absl::OkStatus();
}

bool Writer::post(std::function<void()> task) {
  {
    sync::Lock lock(mutex_);
    if (ended_ || closing_ || !failed_.ok()) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void Writer::fail(const absl::Status& status) {
  {
    sync::Lock lock(mutex_);
    if (failed_.ok()) failed_ = status;
  }
  wake_.notify_one();
}

QueueSize Writer::queued() const {
  sync::Lock lock(mutex_);
  return {static_cast<int64_t>(queue_.size()), queued_bytes_};
}

void Writer::loop() {
  while (true) {
    Work work = next();
    for (const std::function<void()>& task : work.tasks) task();
    if (work.idle && backend_.idle) backend_.idle();
    if (work.end) return end();
    if (!work.group.empty()) write(std::move(work.group));
  }
}

void Writer::refuse_loop() {
  bool ended = false;
  while (!ended) {
    std::vector<Committed> refused;
    {
      sync::Lock lock(mutex_);
      refuse_wake_.wait(mutex_, [this] { return ended_ || !refused_.empty(); });
      refused.swap(refused_);
      ended = ended_;
    }
    for (const Committed& done : refused) answer(done, absl::ResourceExhaustedError(kRefusal));
  }
}

Writer::Work Writer::next() {
  Work work;
  sync::Lock lock(mutex_);
  while (true) {
    work.tasks.swap(tasks_);
    const bool may_write = !full_ || closing_ || std::chrono::steady_clock::now() >= retry_at_;
    if (!failed_.ok() || (closing_ && queue_.empty())) {
      work.end = true;
    } else if (work.tasks.empty() && may_write) {
      work.group = take();
    }
    if (work.end || !work.tasks.empty() || !work.group.empty()) return work;
    if (!queue_.empty()) {
      wake_.wait_until(mutex_, retry_at_);
    } else if (!written_) {
      wake_.wait(mutex_);
    } else if (wake_.wait_for(mutex_, absl::ToChronoMilliseconds(options_.idle_after)) == std::cv_status::timeout) {
      written_ = false;
      work.idle = true;
      return work;
    }
  }
}

// After a full disk it takes one transaction at a time: some may fit.
Writer::Group Writer::take() {
  Group group;
  const int limit = full_ ? 1 : options_.group_limit;
  int64_t bytes = 0;
  while (!queue_.empty() && static_cast<int>(group.size()) < limit && bytes < options_.group_bytes) {
    bytes += queue_.front().bytes;
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  queued_bytes_ -= bytes;
  return group;
}

void Writer::write(Group group) {
  taken_point.pass();
  std::vector<absl::StatusOr<int64_t>> results;
  const absl::Status written = backend_.write(group, results);
  if (!written.ok()) return keep(std::move(group), written);
  sync::Lock lock(mutex_);
  full_ = false;
  written_ = true;
  num_unanswered_ += static_cast<int64_t>(group.size());
  unanswered_.push_back({std::move(group), std::move(results)});
  answer_wake_.notify_one();
}

void Writer::answer_loop() {
  while (true) {
    Written next;
    {
      sync::Lock lock(mutex_);
      answer_wake_.wait(mutex_, [this] { return ended_ || !unanswered_.empty(); });
      if (unanswered_.empty()) return;
      next = std::move(unanswered_.front());
      unanswered_.pop_front();
      // Before the first answer, because an answered client may commit again at once.
      num_unanswered_ -= static_cast<int64_t>(next.group.size());
      is_answering_ = true;
    }
    answer_all(std::move(next));
    sync::Lock lock(mutex_);
    is_answering_ = false;
    if (unanswered_.empty()) answered_.notify_all();
  }
}

void Writer::answer_all(Written written) {
  answer_point.pass();
  int64_t last = 0;
  for (size_t i = 0; i < written.group.size(); ++i) {
    if (written.results[i].ok()) last = *written.results[i];
    answer(written.group[i].done, written.results[i]);
  }
  answered_point.pass();
  if (last > 0) listeners_->announce(last);
}

// A client's request must not wait for a retry: it is refused now.
void Writer::refuse_waiting() {
  std::deque<Queued> kept;
  for (Queued& queued : queue_) {
    if (queued.transaction.when_full == WhenFull::kRetry) {
      kept.push_back(std::move(queued));
    } else {
      queued_bytes_ -= queued.bytes;
      refused_.push_back(std::move(queued.done));
    }
  }
  queue_ = std::move(kept);
  refuse_wake_.notify_one();
}

// Puts back a group that was not written, or ends the store.
void Writer::keep(Group group, const absl::Status& status) {
  sync::Lock lock(mutex_);
  for (auto it = group.rbegin(); it != group.rend(); ++it) {
    queued_bytes_ += it->bytes;
    queue_.push_front(std::move(*it));
  }
  if (!absl::IsResourceExhausted(status)) {
    if (failed_.ok()) failed_ = status;
    return;
  }
  if (closing_) {  // Nodes report it again after a restart.
    failed_ = absl::UnavailableError(absl::StrCat("store: closing, and ", status.message()));
    return;
  }
  // Refuses clients' requests in the group first: answers keep the order of commits.
  std::deque<Queued> later;
  later.assign(std::make_move_iterator(queue_.begin() + static_cast<std::ptrdiff_t>(group.size())),
               std::make_move_iterator(queue_.end()));
  queue_.resize(group.size());
  refuse_waiting();
  const bool waiting = !queue_.empty();
  std::move(later.begin(), later.end(), std::back_inserter(queue_));
  if (!waiting) return;
  refuse_waiting();
  full_ = true;
  retry_at_ = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(options_.full_retry);
}

void Writer::end() {
  absl::Status failed;
  std::deque<Queued> left;
  std::deque<std::function<void()>> tasks;
  bool closing = false;
  {
    sync::Lock lock(mutex_);
    ended_ = true;
    failed = failed_;
    closing = closing_;
    left.swap(queue_);
    tasks.swap(tasks_);
    queued_bytes_ = 0;
    answer_wake_.notify_one();
    // Durable transactions are answered first.
    answered_.wait(mutex_, [this] { return unanswered_.empty() && !is_answering_; });
  }
  for (const std::function<void()>& task : tasks) task();
  refuse_wake_.notify_one();
  for (const Queued& queued : left) answer(queued.done, unavailable(failed));
  if (!failed.ok() && !(closing && absl::IsUnavailable(failed)) && backend_.failed) backend_.failed(failed);
}

}  // namespace titan::store
