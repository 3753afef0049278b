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

// Location of the controllers' store in etcd.
struct EtcdAddress {
  std::vector<std::string> members;  // HOST:PORT of each.
  std::string prefix;                // Prefix of every key. Ends with a slash.
};

// Parses "etcd://HOST:PORT,HOST:PORT/PREFIX". The default prefix is "titan/". Errors: InvalidArgument, which shows the
// expected form.
absl::StatusOr<EtcdAddress> parse_etcd_address(const std::string& text);

// Connections are plaintext: only controllers may be able to reach etcd's network.
struct EtcdEndpoints {
  std::vector<std::string> addresses;  // HOST:PORT of each member.
  absl::Duration call_timeout = absl::Seconds(2);
};

// Thread-safe. It does not retry: after a call without an answer the next one goes to another member. Errors of every
// call: Unavailable: the outcome is not known. ResourceExhausted: etcd is full (its quota) or has too many requests,
// and did nothing. Anything else: etcd refused the call and did nothing.
class EtcdClient {
 public:
  explicit EtcdClient(const EtcdEndpoints& endpoints);

  absl::StatusOr<etcdserverpb::RangeResponse> range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> txn(const etcdserverpb::TxnRequest& request);
  // Drops old versions of every key in the whole of etcd.
  absl::Status compact(int64_t revision);
  // Returns the lease's id.
  absl::StatusOr<int64_t> grant(absl::Duration ttl);
  absl::Status revoke(int64_t lease);
  // Returns the lease's remaining time. NotFound: the lease is gone.
  absl::StatusOr<absl::Duration> keep_alive(int64_t lease);

 private:
  struct Member {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  };
  // Makes the call on the current member, and makes the next member the current one if it does not answer.
  template <typename Call>
  absl::Status ask(const char* what, Call call);

  const absl::Duration timeout_;
  std::vector<Member> members_;
  std::atomic<size_t> current_{0};
};

}  // namespace titan::store
