#include "controller/store/etcd/client.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/rpc/address.h"
#include "common/service/rpc/credentials.h"
#include "grpcpp/create_channel.h"

namespace titan::store {

absl::StatusOr<EtcdAddress> parse_etcd_address(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "etcd://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a store address; expected etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"));
  }
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  EtcdAddress address;
  for (const absl::string_view member : absl::StrSplit(parts.first, ',')) {
    TITAN_RETURN_IF_ERROR(rpc::check_address("an address of etcd", member));
    address.members.emplace_back(member);
  }
  address.prefix = parts.second.empty() ? "titan" : std::string(absl::StripSuffix(parts.second, "/"));
  address.prefix += "/";
  return address;
}

namespace {

using etcdserverpb::KV;
using etcdserverpb::Lease;

constexpr absl::Duration kConnect = absl::Milliseconds(500);

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);  // Also limits one attempt.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // The caller decides what may be done twice.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Separate connections: tests run several controllers in one process and cut them off one by one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);  // For pages of a log with large values.
  return grpc::CreateCustomChannel(address, rpc::plain_channel(), arguments);
}

absl::Status status_of(const char* what, const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("etcd: ", what, ": ", status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:  // Also used for etcd's "request timed out" and "leader changed".
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::DATA_LOSS:
      return absl::UnavailableError(message);
    default:
      return {static_cast<absl::StatusCode>(status.error_code()), message};
  }
}

}  // namespace

EtcdClient::EtcdClient(const EtcdEndpoints& endpoints) : timeout_(endpoints.call_timeout) {
  for (const std::string& address : endpoints.addresses) {
    const std::shared_ptr<grpc::Channel> channel = make_channel(address);
    members_.push_back({address, channel, KV::NewStub(channel), Lease::NewStub(channel)});
  }
}

template <typename Call>
absl::Status EtcdClient::ask(const char* what, Call call) {
  if (members_.empty()) return absl::InvalidArgumentError("etcd: no address is given");
  size_t current = current_;
  Member& member = members_[current];
  const absl::Time now = absl::Now();
  absl::Status status;
  // A channel connects only while somebody waits for it.
  if (!member.channel->WaitForConnected(absl::ToChronoTime(now + std::min(kConnect, timeout_)))) {
    status = absl::UnavailableError(absl::StrCat("etcd: ", what, ": no connection to ", member.address));
  } else {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(now + timeout_));
    status = status_of(what, call(member, context));
  }
  if (absl::IsUnavailable(status)) current_.compare_exchange_strong(current, (current + 1) % members_.size());
  return status;
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::range(const etcdserverpb::RangeRequest& request) {
  etcdserverpb::RangeResponse response;
  TITAN_RETURN_IF_ERROR(ask("read", [&](Member& member, grpc::ClientContext& context) {
    return member.kv->Range(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::txn(const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  TITAN_RETURN_IF_ERROR(ask("transaction", [&](Member& member, grpc::ClientContext& context) {
    return member.kv->Txn(&context, request, &response);
  }));
  return response;
}

absl::Status EtcdClient::compact(int64_t revision) {
  etcdserverpb::CompactionRequest request;
  request.set_revision(revision);
  return ask("compact", [&](Member& member, grpc::ClientContext& context) {
    etcdserverpb::CompactionResponse response;
    return member.kv->Compact(&context, request, &response);
  });
}

absl::StatusOr<int64_t> EtcdClient::grant(absl::Duration ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1)))));
  etcdserverpb::LeaseGrantResponse response;
  TITAN_RETURN_IF_ERROR(ask("grant a lease", [&](Member& member, grpc::ClientContext& context) {
    return member.lease->LeaseGrant(&context, request, &response);
  }));
  return response.id();
}

absl::Status EtcdClient::revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  return ask("revoke a lease", [&](Member& member, grpc::ClientContext& context) {
    etcdserverpb::LeaseRevokeResponse response;
    return member.lease->LeaseRevoke(&context, request, &response);
  });
}

absl::StatusOr<absl::Duration> EtcdClient::keep_alive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  TITAN_RETURN_IF_ERROR(ask("keep a lease", [&](Member& member, grpc::ClientContext& context) {
    const auto stream = member.lease->LeaseKeepAlive(&context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    if (answered) context.TryCancel();  // One answer of the stream is enough.
    const grpc::Status end = stream->Finish();
    if (answered) return grpc::Status::OK;
    return end.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer") : end;
  }));
  if (response.ttl() <= 0) return absl::NotFoundError("etcd: the lease is gone");
  return absl::Seconds(response.ttl());
}

}  // namespace titan::store
