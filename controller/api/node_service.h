#pragma once

#include "controller/auth/gate.h"
#include "controller/reconcile/reconciler.h"
#include "titan/v1/node.grpc.pb.h"

namespace titan::api {

class NodeService : public v1::NodeService::CallbackService {
 public:
  NodeService(reconcile::Reconciler& reconciler, const auth::Gate& gate);

  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context, const v1::GetNodeRequest* request,
                                    v1::Node* response) override;
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context, const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override;
  grpc::ServerUnaryReactor* CordonNode(grpc::CallbackServerContext* context, const v1::CordonNodeRequest* request,
                                       v1::Node* response) override;
  grpc::ServerUnaryReactor* DeleteNode(grpc::CallbackServerContext* context, const v1::DeleteNodeRequest* request,
                                       v1::Node* response) override;
  grpc::ServerUnaryReactor* StopUnknown(grpc::CallbackServerContext* context, const v1::StopUnknownRequest* request,
                                        v1::Node* response) override;
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context, const v1::DrainNodeRequest* request,
                                      v1::Node* response) override;
  grpc::ServerUnaryReactor* UncordonNode(grpc::CallbackServerContext* context, const v1::UncordonNodeRequest* request,
                                         v1::Node* response) override;

 private:
  reconcile::Reconciler& reconciler_;
  const auth::Gate& gate_;
};

}  // namespace titan::api
