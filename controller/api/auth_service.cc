#include "controller/api/auth_service.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/base/status/status.h"
#include "common/service/rpc/server.h"
#include "controller/api/admit_first.h"

namespace titan::api {
namespace {

using auth::Role;
using auth::TokenRecord;

Role from_proto(v1::Token::Role role) {
  switch (role) {
    case v1::Token::VIEWER:
      return Role::kViewer;
    case v1::Token::OPERATOR:
      return Role::kOperator;
    case v1::Token::ADMIN:
      return Role::kAdmin;
    default:
      return Role::kNone;
  }
}

v1::Token::Role to_proto(Role role) {
  switch (role) {
    case Role::kNone:
      return v1::Token::ROLE_UNSPECIFIED;
    case Role::kViewer:
      return v1::Token::VIEWER;
    case Role::kOperator:
      return v1::Token::OPERATOR;
    case Role::kAdmin:
      return v1::Token::ADMIN;
  }
  return v1::Token::ROLE_UNSPECIFIED;
}

v1::Token to_proto(const TokenRecord& record) {
  v1::Token token;
  token.set_id(record.id);
  token.set_user(record.user);
  token.set_role(to_proto(record.role));
  for (const std::string& project : record.projects) token.add_projects(project);
  token.mutable_create_time()->set_seconds(record.create_time_s);
  if (record.expire_time_s != 0) token.mutable_expire_time()->set_seconds(record.expire_time_s);
  token.set_creator(record.creator);
  return token;
}

}  // namespace

AuthService::AuthService(auth::Tokens& tokens, const auth::Gate& gate) : tokens_(tokens), gate_(gate) {
  admit_first([this](int index, auto* handler) { MarkMethodStreamed(index, handler); }, *this, gate,
              &AuthService::CreateToken, &AuthService::ListTokens, &AuthService::RevokeToken);
}

grpc::ServerUnaryReactor* AuthService::CreateToken(grpc::CallbackServerContext* context,
                                                   const v1::CreateTokenRequest* request, v1::Token* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "AuthService.CreateToken"));
    const v1::Token& token = request->token();
    TokenRecord record{token.id(), token.user(), from_proto(token.role()), {}, "", 0, 0, caller.actor};
    record.projects.assign(token.projects().begin(), token.projects().end());
    record.digest = absl::BytesToHexString(request->secret_sha256());
    if (token.has_expire_time()) record.expire_time_s = std::max<int64_t>(1, token.expire_time().seconds());
    tokens_.create(
        record, rpc::finish<TokenRecord>(reactor, [response](const TokenRecord& made) { *response = to_proto(made); }));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AuthService::ListTokens(grpc::CallbackServerContext* context, const v1::ListTokensRequest*,
                                                  v1::ListTokensResponse* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_RETURN_IF_ERROR(gate_.admit(*context, "AuthService.ListTokens").status());
    for (const TokenRecord& token : tokens_.list()) *response->add_tokens() = to_proto(token);
    return rpc::finish_now(reactor);
  });
}

grpc::ServerUnaryReactor* AuthService::RevokeToken(grpc::CallbackServerContext* context,
                                                   const v1::RevokeTokenRequest* request, v1::Token* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_RETURN_IF_ERROR(gate_.admit(*context, "AuthService.RevokeToken").status());
    tokens_.revoke(request->id(), rpc::finish<TokenRecord>(reactor, [response](const TokenRecord& revoked) {
                     *response = to_proto(revoked);
                   }));
    return absl::OkStatus();
  });
}

}  // namespace titan::api
