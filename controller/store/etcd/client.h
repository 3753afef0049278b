#pragma once

// Parses the address of a store in etcd, and makes etcd's calls, each with a deadline, over any of its members.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "etcd/rpc.grpc.pb.h"

namespace titan::store {

// Where the controllers' store is in etcd.
struct EtcdAddress {
  std::vector<std::string> members;  // HOST:PORT of each.
  std::string prefix;                // Of every key; ends with a slash.
};

// "etcd://HOST:PORT,HOST:PORT/PREFIX"; without a prefix "titan/". Errors: InvalidArgument, with the form.
absl::StatusOr<EtcdAddress> parse_etcd_address(const std::string& text);

// Plaintext: etcd listens on a network that only controllers are in.
struct EtcdEndpoints {
  std::vector<std::string> addresses;  // HOST:PORT of each member.
  absl::Duration call_timeout = absl::Seconds(2);
};

// Thread-safe. Nothing is repeated by itself: after a call that nobody answered the next one asks another member.
// Errors of every call: Unavailable: whether it was done is not known. ResourceExhausted: etcd has no room (its quota)
// or too many requests, and did nothing. Anything else: etcd refused it, nothing was done.
class EtcdClient {
 public:
  explicit EtcdClient(const EtcdEndpoints& endpoints);

  absl::StatusOr<etcdserverpb::RangeResponse> range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> txn(const etcdserverpb::TxnRequest& request);
  // Forgets old versions of every key of the whole of etcd.
  absl::Status compact(int64_t revision);
  // The lease's id.
  absl::StatusOr<int64_t> grant(absl::Duration ttl);
  absl::Status revoke(int64_t lease);
  // What is left of it now. NotFound: it is gone.
  absl::StatusOr<absl::Duration> keep_alive(int64_t lease);

 private:
  struct Member {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  };
  // Has the member of the hour do `call`, and turns away from it when it does not answer.
  template <typename Call>
  absl::Status ask(const char* what, Call call);

  const absl::Duration timeout_;
  std::vector<Member> members_;
  std::atomic<size_t> current_{0};
};

}  // namespace titan::store
