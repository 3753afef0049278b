#include "controller/store/etcd/elector.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/etcd/layout.h"

namespace titan::store {
namespace {

failpoint::Failpoint granted_point("elect.granted"), won_point("elect.won"), kept_point("elect.kept");

}  // namespace

Elector::Elector(std::shared_ptr<EtcdClient> client, ElectorOptions options)
    : client_(std::move(client)), options_(std::move(options)) {}

Elector::~Elector() { resign(); }

absl::Status Elector::campaign(absl::Time deadline) {
  while (true) {
    absl::Status tried = try_once();
    if (tried.ok()) {
      thread_ = std::thread([this] { keep(); });
      return tried;
    }
    // A missing answer or a full etcd may pass. A refusal does not.
    if (!absl::IsUnavailable(tried) && !absl::IsResourceExhausted(tried)) return tried;
    const absl::Time now = absl::Now();
    if (now >= deadline) return absl::DeadlineExceededError(tried.message());
    absl::SleepFor(std::min(options_.poll, deadline - now));
  }
}

// Tries to become the leader. Errors: Unavailable if another one leads or etcd does not answer; those of etcd.
absl::Status Elector::try_once() {
  TITAN_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse found, client_->range(read_of(key())));
  set_holder(found.kvs_size() > 0 ? found.kvs(0).value() : "");
  if (found.kvs_size() > 0) return absl::UnavailableError(absl::StrCat(found.kvs(0).value(), " leads"));
  const auto asked = std::chrono::steady_clock::now();
  TITAN_ASSIGN_OR_RETURN(const int64_t lease, client_->grant(options_.lease));
  granted_point.pass();
  absl::Status won = win(lease);
  won_point.pass();
  // Without its lease, a claim that is still on its way has no effect.
  if (!won.ok()) (void)client_->revoke(lease);
  if (!won.ok()) return won;
  lease_ = lease;
  confirmed_ = asked;
  set_holder(options_.name);
  sync::Lock lock(mutex_);
  over_ = absl::OkStatus();
  return won;
}

absl::Status Elector::win(int64_t lease) {
  etcdserverpb::TxnRequest claim;
  expect_created(*claim.add_compare(), key(), 0);
  add_put(*claim.mutable_success(), key(), options_.name, lease);
  add_read(*claim.mutable_failure(), key());
  TITAN_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse answer, client_->txn(claim));
  if (!answer.succeeded()) return absl::UnavailableError("another controller was first");
  epoch_ = answer.header().revision();
  return absl::OkStatus();
}

void Elector::watch(std::function<void(const absl::Status&)> lost) {
  {
    sync::Lock lock(mutex_);
    lost_ = std::move(lost);
  }
  wake_.notify_all();
}

// Waits until the lease must be renewed. False: the elector ends. Reports a loss meanwhile.
bool Elector::wait() {
  std::function<void(const absl::Status&)> callback;
  absl::Status why;
  {
    sync::Lock lock(mutex_);
    wake_.wait_for(mutex_, absl::ToChronoMilliseconds(options_.keepalive),
                   [this] { return ending_ || (!over_.ok() && lost_); });
    if (ending_) return false;
    if (!over_.ok()) callback.swap(lost_);
    why = over_;
  }
  if (callback) callback(why);
  return true;
}

void Elector::keep() {
  while (wait()) {
    if (withheld_ || !leading().ok()) continue;
    const auto asked = std::chrono::steady_clock::now();
    const absl::StatusOr<absl::Duration> kept = client_->keep_alive(lease_);
    kept_point.pass();
    if (withheld_) continue;
    if (kept.ok()) {
      confirmed_ = asked;
    } else if (absl::IsNotFound(kept.status())) {
      declare_lost(absl::UnavailableError("etcd: this controller's lease has ended; another one may lead"));
    } else if (absl::FromChrono(std::chrono::steady_clock::now() - confirmed_) > options_.timeout) {
      declare_lost(absl::UnavailableError(absl::StrCat(
          "etcd has not answered for ", absl::FormatDuration(options_.timeout), ": ", kept.status().message())));
    }
  }
}

absl::Status Elector::leading() const {
  sync::Lock lock(mutex_);
  return over_;
}

std::string Elector::holder() const {
  sync::Lock lock(mutex_);
  return holder_;
}

void Elector::set_holder(const std::string& holder) {
  sync::Lock lock(mutex_);
  holder_ = holder;
}

void Elector::declare_lost(const absl::Status& why) {
  {
    sync::Lock lock(mutex_);
    if (!over_.ok()) return;
    over_ = why;
  }
  wake_.notify_all();
}

void Elector::resign() {
  bool led = false;
  {
    sync::Lock lock(mutex_);
    ending_ = true;
    led = over_.ok();
    if (led) over_ = absl::UnavailableError("etcd: this controller has resigned");
    lost_ = nullptr;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (led) (void)client_->revoke(lease_);
}

}  // namespace titan::store
