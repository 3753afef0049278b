#include "controller/api/rpc_meter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "controller/api/health.h"
#include "controller/api/services.h"

namespace titan::api {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

constexpr char kOther[] = "other";
constexpr int kCodes = 17;  // gRPC's, from OK.

std::string code_name(int code) { return absl::StatusCodeToString(static_cast<absl::StatusCode>(code)); }

int known(int code) { return code >= 0 && code < kCodes ? code : grpc::StatusCode::UNKNOWN; }

}  // namespace

struct RpcMeter::Method {
  Method(metrics::Metrics& all, std::string path) : metrics(all), name(std::move(path)) {}

  metrics::Metrics& metrics;
  const std::string name;
  // By code. Histograms, of 17 series each, are made as codes come: the page would have thousands that stay at 0.
  std::array<std::atomic<prometheus::Histogram*>, kCodes> durations = {};
  std::array<std::atomic<prometheus::Counter*>, kCodes> ended = {};
  prometheus::Counter* begun = nullptr;  // Of a method that streams.
  prometheus::Gauge* open = nullptr;

  prometheus::Histogram& duration(int code) {
    prometheus::Histogram* known = durations[code].load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    known = &metrics.histogram("titan_rpc_duration_seconds", "Unary calls, from their arrival to the answer.",
                               {{"method", name}, {"code", code_name(code)}});
    durations[code].store(known, std::memory_order_release);  // Whoever comes first: it is the same one.
    return *known;
  }
  prometheus::Counter& ended_with(int code) {
    prometheus::Counter* known = ended[code].load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    known = &metrics.counter("titan_rpc_streams_ended_total", "Streams that ended.",
                             {{"method", name}, {"code", code_name(code)}});
    ended[code].store(known, std::memory_order_release);
    return *known;
  }
};

// Notes the status of the answer.
class RpcMeter::Call : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = known(batch->GetSendStatus().error_code());
    }
    batch->Proceed();
  }

 protected:
  int code_ = grpc::StatusCode::CANCELLED;  // Of a call that ends without an answer.
};

class RpcMeter::UnaryCall : public Call {
 public:
  explicit UnaryCall(Method& method) : method_(method) {}
  ~UnaryCall() override { method_.duration(code_).Observe(absl::ToDoubleSeconds(absl::Now() - begin_)); }

 private:
  Method& method_;
  const absl::Time begin_ = absl::Now();
};

class RpcMeter::StreamCall : public Call {
 public:
  explicit StreamCall(Method& method) : method_(method) {
    method_.begun->Increment();
    method_.open->Increment();
  }
  ~StreamCall() override {
    method_.open->Decrement();
    method_.ended_with(code_).Increment();
  }

 private:
  Method& method_;
};

RpcMeter::RpcMeter(metrics::Metrics& metrics) : metrics_(metrics) {
  for (const google::protobuf::ServiceDescriptor* service : services()) {
    for (int i = 0; i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor* method = service->method(i);
      add_method(absl::StrCat(service->name(), "/", method->name()),
                 method->client_streaming() || method->server_streaming());
    }
  }
  add_method(kOther, /*streams=*/true);
  other_ = methods_.at(kOther).get();
}

RpcMeter::~RpcMeter() = default;

void RpcMeter::add_method(const std::string& name, bool streams) {
  const bool is_other = name == kOther;
  auto method = std::make_unique<Method>(metrics_, name);
  if (streams) {
    method->begun = &metrics_.counter("titan_rpc_streams_begun_total", "Streams that began.", {{"method", name}});
    method->open = &metrics_.gauge("titan_rpc_open_streams", "Streams that are open.", {{"method", name}});
    for (int code = 0; code < kCodes; ++code) method->ended_with(code);  // rate() does not see the first of a new one.
  }
  if (!streams || is_other) method->duration(grpc::StatusCode::OK);
  methods_[is_other ? name : absl::StrCat("/titan.v1.", name)] = std::move(method);
}

grpc::experimental::Interceptor* RpcMeter::CreateServerInterceptor(ServerRpcInfo* info) {
  const auto found = methods_.find(info->method() == nullptr ? "" : info->method());
  Method& method = found == methods_.end() ? *other_ : *found->second;
  // To gRPC all of ours are streams (admit_first.h).
  const bool is_unary = method.open == nullptr || info->type() == ServerRpcInfo::Type::UNARY ||
                        info->method() == absl::string_view(kHealthCheck);
  if (is_unary) return new UnaryCall(method);
  return new StreamCall(method);
}

}  // namespace titan::api
