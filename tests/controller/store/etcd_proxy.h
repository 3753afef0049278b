#pragma once

// Simulates a bad network between a controller and etcd: forwards requests, loses answers, and holds requests back to
// deliver them late or twice.

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
  enum class Fate { kPass, kLoseAnswer, kHoldBack };

  // `etcd`: HOST:PORT.
  explicit EtcdProxy(const std::string& etcd);
  ~EtcdProxy();

  // HOST:PORT for the controller.
  std::string address() const;
  // Sets the function that decides on each later transaction; its argument is the number of earlier ones. If the answer
  // is lost or the request held back, the controller gets UNAVAILABLE.
  void set_fate(std::function<Fate(int number)> fate);
  // Returns every transaction that was sent, in order.
  std::vector<etcdserverpb::TxnRequest> sent() const;
  int held_back() const;
  // Sends a transaction to etcd now, independent of any caller.
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
  int held_back_ TITAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace titan::store
