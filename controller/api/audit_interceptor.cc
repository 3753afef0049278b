#include "controller/api/audit_interceptor.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/service/rpc/error.h"
#include "controller/auth/permissions.h"
#include "google/protobuf/message.h"

namespace titan::api {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using grpc::experimental::InterceptionHookPoints;
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

// "/titan.v1.JobService/CancelJob" as the table of permissions has it.
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
  // The handler has not run yet: what it does may take the caller's rights away.
  void begin(const void* request) {
    const absl::StatusOr<auth::Caller> caller = gate_.identify(context_);
    entry_.actor = caller.ok() ? caller->actor : auth::stranger(caller.status());
    entry_.peer = auth::peer_address(context_.peer());
    if (request == nullptr) return;
    const auto& message = *static_cast<const Message*>(request);
    entry_.resource = resource_of(message);
    entry_.request_id = text(message, "request_id");
  }
  // A job that came as text, or without an id, has its name only now.
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

}  // namespace titan::api
