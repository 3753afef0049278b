#include "controller/api/interceptors.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/service/rpc/error.h"
#include "controller/api/health.h"
#include "controller/api/services.h"
#include "controller/auth/caller.h"
#include "google/protobuf/message.h"

namespace titan::api {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

class Guard : public grpc::experimental::Interceptor {
 public:
  Guard(const auth::Gate& gate, ServerRpcInfo& info) : gate_(gate), context_(*info.server_context()) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    const bool begins = methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA);
    if (begins && !gate_.identify(context_).ok()) context_.TryCancel();
    methods->Proceed();
  }

 private:
  const auth::Gate& gate_;
  grpc::ServerContextBase& context_;
};

}  // namespace

grpc::experimental::Interceptor* ReflectionGuard::CreateServerInterceptor(ServerRpcInfo* info) {
  const bool reflects = info->method() != nullptr && absl::StartsWith(info->method(), "/grpc.reflection.");
  return reflects ? new Guard(gate_, *info) : nullptr;
}

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using grpc::experimental::InterceptorBatchMethods;

const Message* part(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  const bool has = field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated();
  return has ? &message.GetReflection()->GetMessage(message, field) : nullptr;
}

std::string text(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  const bool has = field != nullptr && field->type() == FieldDescriptor::TYPE_STRING && !field->is_repeated();
  return has ? message.GetReflection()->GetString(message, field) : "";
}

// Turns "/titan.v1.JobService/CancelJob" into the name in the table of permissions.
std::string short_method(const char* method) {
  return absl::StrReplaceAll(absl::StripPrefix(method, "/titan.v1."), {{"/", "."}});
}

class Auditor : public grpc::experimental::Interceptor {
 public:
  Auditor(auth::Audit& audit, const auth::Gate& gate, grpc::experimental::ServerRpcInfo& info)
      : audit_(audit), gate_(gate), context_(*info.server_context()) {
    entry_.method = short_method(info.method());
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE))
      begin(methods->GetRecvMessage());
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE))
      name_made(methods->GetSendMessage());
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) end(methods->GetSendStatus());
    methods->Proceed();
  }

 private:
  // Identifies the caller before the handler runs, which may take the caller's rights away.
  void begin(const void* request) {
    const absl::StatusOr<auth::Caller> caller = gate_.identify(context_);
    entry_.actor = caller.ok() ? caller->actor : auth::refused_actor(caller.status());
    entry_.peer = auth::peer_address(context_.peer());
    if (request == nullptr) return;
    const auto& message = *static_cast<const Message*>(request);
    entry_.resource = resource_of(message);
    entry_.request_id = text(message, "request_id");
  }
  // A job that came as text or without an id has its name only now.
  void name_made(const void* answer) {
    if (answer == nullptr || entry_.method != "JobService.CreateJob") return;
    entry_.resource = text(*static_cast<const Message*>(answer), "name");
  }
  void end(const grpc::Status& status) {
    entry_.time = absl::Now();
    const absl::Status plain = rpc::from_grpc(status);
    entry_.result = rpc::reason(plain);
    if (entry_.result.empty()) entry_.result = absl::StatusCodeToString(plain.code());
    audit_.write(entry_);
  }

  auth::Audit& audit_;
  const auth::Gate& gate_;
  const grpc::ServerContextBase& context_;
  auth::AuditEntry entry_;
};

class Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(auth::Audit& audit, const auth::Gate& gate) : audit_(audit), gate_(gate) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    const std::optional<auth::Permission> row = auth::permission(short_method(info->method()));
    return row && row->changes ? new Auditor(audit_, gate_, *info) : nullptr;
  }

 private:
  auth::Audit& audit_;
  const auth::Gate& gate_;
};

}  // namespace

std::string resource_of(const Message& request) {
  if (std::string name = text(request, "name"); !name.empty()) return name;
  if (const Message* job = part(request, "job")) return text(*job, "name");
  if (const Message* token = part(request, "token")) return absl::StrCat("tokens/", text(*token, "id"));
  if (const std::string id = text(request, "id"); !id.empty()) return absl::StrCat("tokens/", id);
  const Message* const spec = part(request, "spec");
  if (spec == nullptr) return "";
  const std::string project = text(*spec, "project");
  return absl::StrCat("projects/", project.empty() ? "default" : project, "/jobs/", text(*spec, "job_id"));
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> audit_calls(auth::Audit& audit,
                                                                                   const auth::Gate& gate) {
  return std::make_unique<Factory>(audit, gate);
}

namespace {

constexpr char kOther[] = "other";
constexpr int kCodes = 17;  // Number of gRPC's status codes.

std::string code_name(int code) { return absl::StatusCodeToString(static_cast<absl::StatusCode>(code)); }

int known(int code) { return code >= 0 && code < kCodes ? code : grpc::StatusCode::UNKNOWN; }

}  // namespace

struct RpcMeter::Method {
  Method(metrics::Metrics& all, std::string path) : metrics(all), name(std::move(path)) {}

  metrics::Metrics& metrics;
  const std::string name;
  // Indexed by code. A histogram, which has 17 series, is made when its code first occurs; otherwise the page would
  // have thousands of series that stay at 0.
  std::array<std::atomic<prometheus::Histogram*>, kCodes> durations = {};
  std::array<std::atomic<prometheus::Counter*>, kCodes> ended = {};
  prometheus::Counter* begun = nullptr;  // Set for a method that streams.
  prometheus::Gauge* open = nullptr;

  prometheus::Histogram& duration(int code) {
    prometheus::Histogram* known = durations[code].load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    known = &metrics.histogram("titan_rpc_duration_seconds", "Unary calls, from their arrival to the answer.",
                               {{"method", name}, {"code", code_name(code)}});
    durations[code].store(known, std::memory_order_release);  // Two threads may get here; both store the same one.
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

// Records the status of the answer.
class RpcMeter::Call : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = known(batch->GetSendStatus().error_code());
    }
    batch->Proceed();
  }

 protected:
  int code_ = grpc::StatusCode::CANCELLED;  // Remains for a call that ends without an answer.
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
    // rate() misses the first increment of a new series, so all series exist from the start.
    for (int code = 0; code < kCodes; ++code) method->ended_with(code);
  }
  if (!streams || is_other) method->duration(grpc::StatusCode::OK);
  methods_[is_other ? name : absl::StrCat("/titan.v1.", name)] = std::move(method);
}

grpc::experimental::Interceptor* RpcMeter::CreateServerInterceptor(ServerRpcInfo* info) {
  const auto found = methods_.find(info->method() == nullptr ? "" : info->method());
  Method& method = found == methods_.end() ? *other_ : *found->second;
  // gRPC sees all of Titan's methods as streams (admit_first.h).
  const bool is_unary = method.open == nullptr || info->type() == ServerRpcInfo::Type::UNARY ||
                        info->method() == absl::string_view(kHealthCheck);
  if (is_unary) return new UnaryCall(method);
  return new StreamCall(method);
}

}  // namespace titan::api
