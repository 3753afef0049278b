#pragma once

#include "controller/auth/gate.h"
#include "controller/auth/tokens.h"
#include "titan/v1/auth.grpc.pb.h"

namespace titan::api {

class AuthService : public v1::AuthService::CallbackService {
 public:
  AuthService(auth::Tokens& tokens, const auth::Gate& gate);

  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context, const v1::CreateTokenRequest* request,
                                        v1::Token* response) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context, const v1::ListTokensRequest* request,
                                       v1::ListTokensResponse* response) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context, const v1::RevokeTokenRequest* request,
                                        v1::Token* response) override;

 private:
  auth::Tokens& tokens_;
  const auth::Gate& gate_;
};

}  // namespace titan::api
