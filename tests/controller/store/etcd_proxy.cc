#include "tests/controller/store/etcd_proxy.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace titan::store {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using grpc::ServerContext;
using grpc::Status;

namespace {

const Status kNoAnswer(grpc::StatusCode::UNAVAILABLE, "no answer");

}  // namespace

class EtcdProxy::Kv : public etcdserverpb::KV::Service {
 public:
  explicit Kv(EtcdProxy& proxy) : proxy_(proxy) {}
  Status Range(ServerContext*, const etcdserverpb::RangeRequest* request,
               etcdserverpb::RangeResponse* response) override {
    grpc::ClientContext context;
    return proxy_.kv_->Range(&context, *request, response);
  }
  Status Txn(ServerContext*, const TxnRequest* request, TxnResponse* response) override {
    const Fate fate = proxy_.take(*request);
    if (fate == Fate::kHoldBack) return kNoAnswer;
    grpc::ClientContext context;
    const Status done = proxy_.kv_->Txn(&context, *request, response);
    return fate == Fate::kLoseAnswer ? kNoAnswer : done;
  }
  Status Compact(ServerContext*, const etcdserverpb::CompactionRequest* request,
                 etcdserverpb::CompactionResponse* response) override {
    grpc::ClientContext context;
    return proxy_.kv_->Compact(&context, *request, response);
  }

 private:
  EtcdProxy& proxy_;
};

class EtcdProxy::Lease : public etcdserverpb::Lease::Service {
 public:
  explicit Lease(EtcdProxy& proxy) : proxy_(proxy) {}
  Status LeaseGrant(ServerContext*, const etcdserverpb::LeaseGrantRequest* request,
                    etcdserverpb::LeaseGrantResponse* response) override {
    grpc::ClientContext context;
    return proxy_.lease_->LeaseGrant(&context, *request, response);
  }
  Status LeaseRevoke(ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                     etcdserverpb::LeaseRevokeResponse* response) override {
    grpc::ClientContext context;
    return proxy_.lease_->LeaseRevoke(&context, *request, response);
  }
  Status LeaseKeepAlive(ServerContext*,
                        grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                                                 etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    grpc::ClientContext context;
    const auto etcd = proxy_.lease_->LeaseKeepAlive(&context);
    etcdserverpb::LeaseKeepAliveRequest request;
    etcdserverpb::LeaseKeepAliveResponse response;
    while (stream->Read(&request) && etcd->Write(request) && etcd->Read(&response)) stream->Write(response);
    context.TryCancel();
    (void)etcd->Finish();
    return Status::OK;
  }

 private:
  EtcdProxy& proxy_;
};

EtcdProxy::EtcdProxy(const std::string& etcd)
    : etcd_({{etcd}}), kv_service_(std::make_unique<Kv>(*this)), lease_service_(std::make_unique<Lease>(*this)) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel = grpc::CreateCustomChannel(etcd, grpc::InsecureChannelCredentials(), arguments);
  kv_ = etcdserverpb::KV::NewStub(channel);
  lease_ = etcdserverpb::Lease::NewStub(channel);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(kv_service_.get());
  builder.RegisterService(lease_service_.get());
  server_ = builder.BuildAndStart();
}

EtcdProxy::~EtcdProxy() {
  server_->Shutdown(std::chrono::system_clock::now());
  // gRPC has joined its threads by now; ThreadSanitizer does not see it because gRPC was built without it.
  sync::Lock lock(mutex_);
  sent_.clear();
  fate_ = nullptr;
}

std::string EtcdProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void EtcdProxy::set_fate(std::function<Fate(int)> fate) {
  sync::Lock lock(mutex_);
  fate_ = std::move(fate);
}

std::vector<TxnRequest> EtcdProxy::sent() const {
  sync::Lock lock(mutex_);
  return sent_;
}

int EtcdProxy::held_back() const {
  sync::Lock lock(mutex_);
  return held_back_;
}

absl::StatusOr<TxnResponse> EtcdProxy::deliver(const TxnRequest& request) { return etcd_.txn(request); }

EtcdProxy::Fate EtcdProxy::take(const TxnRequest& request) {
  sync::Lock lock(mutex_);
  const Fate fate = fate_ == nullptr ? Fate::kPass : fate_(static_cast<int>(sent_.size()));
  sent_.push_back(request);
  if (fate == Fate::kHoldBack) ++held_back_;
  return fate;
}

}  // namespace titan::store
