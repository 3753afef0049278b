#pragma once

// A bad network between a controller and etcd: passes requests on, loses answers, keeps requests back and delivers them
// late or twice.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "controller/store/etcd/client.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/server.h"

namespace titan::store {

class EtcdProxy {
 public:
  enum class Fate { kPass, kLoseAnswer, kKeepBack };

  // `etcd`: HOST:PORT.
  explicit EtcdProxy(const std::string& etcd);
  ~EtcdProxy();

  // For the controller: HOST:PORT.
  std::string address() const;
  // What becomes of each transaction from now on; called with the number of those before. Those whose answers are lost
  // or that are kept back look to the controller as if nobody had answered.
  void set_fate(std::function<Fate(int number)> fate);
  // Every transaction that was sent, in order; and how many were kept back, which etcd never saw.
  std::vector<etcdserverpb::TxnRequest> sent() const;
  int kept_back() const;
  // Sends one to etcd now, whoever waits for it.
  absl::StatusOr<etcdserverpb::TxnResponse> deliver(const etcdserverpb::TxnRequest& request);

 private:
  class Kv;
  class Lease;
  Fate take(const etcdserverpb::TxnRequest& request);

  EtcdClient etcd_;
  std::unique_ptr<etcdserverpb::KV::Stub> kv_;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease_;
  std::unique_ptr<Kv> kv_service_;
  std::unique_ptr<Lease> lease_service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  mutable sync::Mutex mutex_;
  std::function<Fate(int)> fate_ TITAN_GUARDED_BY(mutex_);
  std::vector<etcdserverpb::TxnRequest> sent_ TITAN_GUARDED_BY(mutex_);
  int kept_back_ TITAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace titan::store
