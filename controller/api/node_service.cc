#include "controller/api/node_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"
#include "common/service/rpc/server.h"
#include "controller/api/admit_first.h"
#include "controller/api/convert.h"
#include "controller/api/paging.h"

namespace titan::api {
namespace {

constexpr absl::Duration kUsualGrace = absl::Seconds(30);
constexpr size_t kMaxReasonBytes = 1024;

// Returns the node with only the jobs of the caller's projects.
v1::Node shown_to(const auth::Caller& caller, const reconcile::NodeView& view) {
  v1::Node node = to_proto(view);
  if (caller.sees_all()) return node;
  const auto erase = [&caller](auto& list, const auto& job_of) {
    list.erase(std::remove_if(list.begin(), list.end(),
                              [&](const auto& one) { return !caller.sees(auth::project_of(job_of(one))); }),
               list.end());
  };
  erase(*node.mutable_jobs(), [](const std::string& job) { return job; });
  erase(*node.mutable_slow_ranks(), [](const v1::SlowRank& rank) { return rank.job(); });
  erase(*node.mutable_unknown(), [](const v1::UnknownAttempt& attempt) { return attempt.job(); });
  erase(*node.mutable_left(), [](const v1::LeftAttempt& attempt) { return attempt.job(); });
  return node;
}

// Limits the reason, which is shown with the node and stored in its events.
absl::Status check_reason(const std::string& reason) {
  if (reason.size() <= kMaxReasonBytes) return absl::OkStatus();
  return rpc::bad_request("REASON_INVALID", {too_long("reason", reason.size(), kMaxReasonBytes)});
}

}  // namespace

NodeService::NodeService(reconcile::Reconciler& reconciler, const auth::Gate& gate)
    : reconciler_(reconciler), gate_(gate) {
  admit_first([this](int index, auto* handler) { MarkMethodStreamed(index, handler); }, *this, gate,
              &NodeService::GetNode, &NodeService::ListNodes, &NodeService::CordonNode, &NodeService::UncordonNode,
              &NodeService::DrainNode, &NodeService::DeleteNode, &NodeService::StopUnknown);
}

grpc::ServerUnaryReactor* NodeService::GetNode(grpc::CallbackServerContext* context, const v1::GetNodeRequest* request,
                                               v1::Node* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.GetNode"));
    if (request->name().empty()) return name_missing_error("node");
    TITAN_ASSIGN_OR_RETURN(const reconcile::NodeView view, reconciler_.node(node_id(request->name())));
    *response = shown_to(caller, view);
    return rpc::finish_now(reactor);
  });
}

grpc::ServerUnaryReactor* NodeService::ListNodes(grpc::CallbackServerContext* context,
                                                 const v1::ListNodesRequest* request, v1::ListNodesResponse* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.ListNodes"));
    TITAN_ASSIGN_OR_RETURN(const PageRequest page, read_page(request->page_size(), request->page_token(), "nodes"));
    std::string last;
    // Reads one node more, to know whether another page follows.
    for (const reconcile::NodeView& view : reconciler_.nodes_after(page.after, static_cast<size_t>(page.size) + 1)) {
      if (response->nodes_size() == page.size) {
        response->set_next_page_token(write_token(last, "nodes"));
        break;
      }
      last = view.node.record.name;
      *response->add_nodes() = shown_to(caller, view);
    }
    return rpc::finish_now(reactor);
  });
}

grpc::ServerUnaryReactor* NodeService::CordonNode(grpc::CallbackServerContext* context,
                                                  const v1::CordonNodeRequest* request, v1::Node* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.CordonNode"));
    if (request->name().empty()) return name_missing_error("node");
    TITAN_RETURN_IF_ERROR(check_reason(request->reason()));
    const auto fill = [response](const reconcile::NodeView& view) { *response = to_proto(view); };
    reconciler_.cordon(node_id(request->name()), true, request->reason(),
                       rpc::finish<reconcile::NodeView>(reactor, fill), caller.actor);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* NodeService::DrainNode(grpc::CallbackServerContext* context,
                                                 const v1::DrainNodeRequest* request, v1::Node* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.DrainNode"));
    if (request->name().empty()) return name_missing_error("node");
    TITAN_RETURN_IF_ERROR(check_reason(request->reason()));
    const auto fill = [response](const reconcile::NodeView& view) { *response = to_proto(view); };
    reconciler_.drain(node_id(request->name()), request->reason(), rpc::finish<reconcile::NodeView>(reactor, fill),
                      caller.actor);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* NodeService::DeleteNode(grpc::CallbackServerContext* context,
                                                  const v1::DeleteNodeRequest* request, v1::Node* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.DeleteNode"));
    if (request->name().empty()) return name_missing_error("node");
    const std::string node = node_id(request->name());
    const auto answer = [=, allow_missing = request->allow_missing()](const absl::StatusOr<reconcile::NodeView>& view) {
      if (view.ok()) *response = to_proto(*view);
      const bool missing = allow_missing && absl::IsNotFound(view.status());
      if (missing) response->set_name(absl::StrCat("nodes/", node));
      reactor->Finish(missing ? grpc::Status::OK : rpc::to_grpc(view.status()));
    };
    reconciler_.delete_node(node, answer, caller.actor, request->force());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* NodeService::StopUnknown(grpc::CallbackServerContext* context,
                                                   const v1::StopUnknownRequest* request, v1::Node* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.StopUnknown"));
    if (request->name().empty()) return name_missing_error("node");
    const auto fill = [response](const reconcile::NodeView& view) { *response = to_proto(view); };
    const int64_t grace = request->grace_milliseconds();
    reconciler_.stop_unknown(node_id(request->name()), request->job_uid(),
                             grace > 0 ? absl::Milliseconds(grace) : kUsualGrace,
                             rpc::finish<reconcile::NodeView>(reactor, fill), caller.actor);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* NodeService::UncordonNode(grpc::CallbackServerContext* context,
                                                    const v1::UncordonNodeRequest* request, v1::Node* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "NodeService.UncordonNode"));
    if (request->name().empty()) return name_missing_error("node");
    const auto fill = [response](const reconcile::NodeView& view) { *response = to_proto(view); };
    reconciler_.cordon(node_id(request->name()), false, "", rpc::finish<reconcile::NodeView>(reactor, fill),
                       caller.actor);
    return absl::OkStatus();
  });
}

}  // namespace titan::api
