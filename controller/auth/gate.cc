#include "controller/auth/gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pwd.h>

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/base/text/host_port.h"
#include "common/service/rpc/address.h"
#include "common/service/rpc/error.h"
#include "common/service/rpc/identity.h"
#include "controller/auth/caller.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"

namespace titan::auth {
namespace {

constexpr char kUserKey[] = "titan-user";
constexpr char kUserField[] = "user";
constexpr char kTokenKey[] = "authorization";
constexpr absl::string_view kBearer = "Bearer ";

// Returns the "user:NAME" that the caller claims, or "".
std::string claimed_user(const grpc::ServerContextBase& context) {
  const auto claimed = context.client_metadata().find(kUserKey);
  if (claimed == context.client_metadata().end()) return "";
  return user_actor({claimed->second.data(), claimed->second.size()});
}

// Returns a user's name, since user ids may differ between nodes; the id if it has no name here.
std::string user_name(uid_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  char text[16384];
  const bool known = ::getpwuid_r(uid, &entry, text, sizeof(text), &found) == 0 && found != nullptr;
  return known ? std::string(found->pw_name) : absl::StrCat(uid);
}

Caller on_this_machine(Caller caller, uid_t uid) {
  caller.unix_user = user_name(uid);
  caller.is_local = true;
  return caller;
}

// A token or certificate belongs to the unix user of the same name.
Caller by_name(Caller caller) {
  absl::string_view name = caller.actor;
  if (absl::ConsumePrefix(&name, "user:")) caller.unix_user = std::string(name);
  return caller;
}

std::string or_else(const std::string& first, const std::string& second) { return first.empty() ? second : first; }

// Returns the address of a peer on loopback, which gRPC writes as "ipv4:127.0.0.1:40312".
std::optional<HostPort> local_peer(const std::string& peer) {
  std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  if (!absl::StartsWith(address, "ipv4:") && !absl::StartsWith(address, "ipv6:")) return std::nullopt;
  address = address.substr(5);
  return rpc::is_local(address) ? split_host_port(address) : std::nullopt;
}

// Returns the server's end of a connection from `client`; nothing when the server has several addresses: the client may
// have connections from one port to two of them, and it is unknown which one makes the call.
std::optional<std::string> server_end(const std::string& listens, const std::string& client) {
  const bool is_v6 = absl::StrContains(client, ':');
  if (listens == "localhost") return is_v6 ? "::1" : "127.0.0.1";
  in_addr v4{};
  in6_addr v6{};
  const bool one =
      (inet_pton(AF_INET, listens.c_str(), &v4) == 1 && v4.s_addr != INADDR_ANY) ||
      (inet_pton(AF_INET6, listens.c_str(), &v6) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&v6) && !IN6_IS_ADDR_V4MAPPED(&v6));
  return one ? std::optional(listens) : std::nullopt;
}

std::string property_of(const grpc::AuthContext& peer, const char* property) {
  const std::vector<grpc::string_ref> found = peer.FindPropertyValues(property);
  return found.empty() ? "" : std::string(found.front().data(), found.front().size());
}

// Returns the peer's own certificate, then those that it sent with it; empty when it sent none. The content of the
// chain depends on the TLS library and on the client: OpenSSL leaves out a client's own certificate, and a client whose
// file holds nothing else may or may not send its authority's.
std::string certificate_of(const grpc::AuthContext& peer) {
  const std::string own = property_of(peer, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return own.empty() ? "" : absl::StrCat(own, property_of(peer, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME));
}

bool by_unix_socket(const std::string& peer) { return absl::StartsWith(peer, "unix:"); }

absl::Status refuse(absl::string_view reason, const std::string& message) {
  return rpc::error(absl::StatusCode::kPermissionDenied, reason, message);
}

bool holds(const Caller& caller, Role least, absl::string_view project) {
  return caller.role >= least && (project.empty() ? !caller.projects.empty() : caller.sees(project));
}

std::string in_project(absl::string_view project) {
  if (project.empty()) return " of a project";
  return project == kAllProjects ? " of all projects" : absl::StrCat(" of project ", project);
}

absl::Status require(const Caller& caller, Role least, absl::string_view project, absl::string_view method) {
  if (holds(caller, least, project)) return absl::OkStatus();
  return refuse("ROLE_MISSING",
                absl::StrCat(method, " is for ", name(least), "s", in_project(project), ", and ", caller.actor,
                             " is not one; an admin grants roles with `titanctl auth token create`"));
}

}  // namespace

absl::StatusOr<Caller> caller_of(const std::optional<rpc::Identity>& identity) {
  using Kind = rpc::Identity::Kind;
  const std::string actor = identity ? user_actor(identity->name) : "";
  if (actor.empty())
    return rpc::error(absl::StatusCode::kUnauthenticated, "CERTIFICATE_UNKNOWN",
                      "the certificate names no node, user or admin: issue one with `titanctl cluster issue`");
  if (identity->kind == Kind::kNode) return Caller{absl::StrCat("node:", identity->name), {}, {}, identity->name};
  if (identity->kind == Kind::kAdmin) return Caller{actor, Role::kAdmin, {kAllProjects}, ""};
  return Caller{actor, Role::kNone, {}, ""};
}

absl::Status check(const Caller& caller, absl::string_view method, absl::string_view project) {
  const std::optional<Permission> needed = permission(method);
  if (!needed) return refuse("METHOD_UNKNOWN", absl::StrCat("unknown method ", method));
  switch (needed->need) {
    case Need::kRead:
      return require(caller, Role::kViewer, project, method);
    case Need::kOperate:
      return require(caller, Role::kOperator, project, method);
    case Need::kOperateCluster:
      return require(caller, Role::kOperator, kAllProjects, method);
    case Need::kAdmin:
      return require(caller, Role::kAdmin, kAllProjects, method);
    case Need::kSession:
      if (!caller.node.empty()) return absl::OkStatus();
      return refuse("NOT_A_NODE",
                    absl::StrCat("only nodes open sessions, and ", caller.actor,
                                 " is not a node; issue its certificate with `titanctl cluster issue --node NAME`"));
  }
  return refuse("METHOD_UNKNOWN", absl::StrCat("unknown method ", method));
}

std::string refused_actor(const absl::Status& refusal) {
  for (const auto& [field, value] : rpc::metadata(refusal)) {
    if (field == kUserField) return absl::StrCat("local:", value);
  }
  return "";
}

absl::StatusOr<uid_t> Gate::owner_of(const std::string& peer) const {
  const std::optional<HostPort> client = local_peer(peer);
  const std::optional<std::string> server = client ? server_end(options_.listens, client->host) : std::nullopt;
  if (!server) return absl::UnimplementedError("the kernel is not asked");
  return options_.owner({client->host, client->port, *server, port_});
}

absl::StatusOr<Caller> Gate::identify_local(const grpc::ServerContextBase& context) const {
  const std::string peer = context.peer();
  // The file system decides who may open the socket's file.
  if (by_unix_socket(peer))
    return on_this_machine(admin(or_else(claimed_user(context), absl::StrCat("local:", options_.own))), options_.own);
  const absl::StatusOr<uid_t> owner = owner_of(peer);
  if (absl::IsUnimplemented(owner.status())) {
    return rpc::error(absl::StatusCode::kUnauthenticated, "WHO_ARE_YOU",
                      absl::StrCat("cannot identify the caller at ", peer_address(peer),
                                   ": give titanctl a token with --token-file, or a certificate with --tls"));
  }
  if (!owner.ok()) {
    return rpc::error(absl::StatusCode::kUnauthenticated, "WHO_ARE_YOU",
                      absl::StrCat("cannot identify which user of this machine calls (", owner.status().message(),
                                   "): try again, or give titanctl a token with --token-file"));
  }
  if (*owner != options_.own && *owner != 0) {
    return rpc::error(
        absl::StatusCode::kPermissionDenied, "ANOTHER_USER",
        absl::StrCat("this controller belongs to user ", options_.own, " of its machine, and user ", *owner,
                     " calls: ask its admin for a token (`titanctl auth token create`) and give it with "
                     "--token-file"),
        {{kUserField, absl::StrCat(*owner)}});
  }
  return on_this_machine(admin(or_else(claimed_user(context), absl::StrCat("local:", *owner))), *owner);
}

Caller Gate::insecure_caller(const grpc::ServerContextBase& context) const {
  const std::string peer = context.peer();
  Caller caller = admin(or_else(claimed_user(context), peer_actor(peer)));
  if (by_unix_socket(peer)) return on_this_machine(std::move(caller), options_.own);
  const absl::StatusOr<uid_t> owner = owner_of(peer);
  return owner.ok() ? on_this_machine(std::move(caller), *owner) : caller;
}

std::optional<absl::StatusOr<Caller>> Gate::certified(const grpc::ServerContextBase& context) const {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  std::string certificate = peer == nullptr ? "" : certificate_of(*peer);
  if (certificate.empty()) return std::nullopt;
  if (absl::Status stands = trust_.stands(certificate); !stands.ok()) return stands;
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : peer->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME))
    uris.emplace_back(uri.data(), uri.size());
  absl::StatusOr<Caller> caller = caller_of(rpc::identity_in(uris));
  if (caller.ok()) caller->certificate = std::move(certificate);
  return caller;
}

absl::StatusOr<Caller> Gate::identify(const grpc::ServerContextBase& context) const {
  if (options_.insecure) return insecure_caller(context);
  std::optional<absl::StatusOr<Caller>> certificate = certified(context);
  if (certificate && (!certificate->ok() || !(*certificate)->node.empty())) return *std::move(certificate);
  const auto [first, end] = context.client_metadata().equal_range(kTokenKey);
  if (first == end) return certificate ? by_name(**std::move(certificate)) : identify_local(context);
  absl::string_view given(first->second.data(), first->second.size());
  if (std::next(first) != end || !absl::ConsumePrefix(&given, kBearer)) given = "";
  TITAN_ASSIGN_OR_RETURN(Caller caller, tokens_.caller(given));
  if (certificate && (*certificate)->actor != caller.actor && (*certificate)->role != Role::kAdmin) {
    return rpc::error(absl::StatusCode::kUnauthenticated, "TOKEN_OF_ANOTHER",
                      absl::StrCat("the token belongs to ", caller.actor, " and the certificate to ",
                                   (*certificate)->actor, ": use only one of them"));
  }
  if (certificate) caller.certificate = (*certificate)->certificate;
  return by_name(std::move(caller));
}

absl::Status Gate::stands(const Caller& caller) const {
  if (!caller.certificate.empty()) TITAN_RETURN_IF_ERROR(trust_.stands(caller.certificate));
  return caller.token.empty() ? absl::OkStatus() : tokens_.stands(caller.token, caller.token_digest);
}

absl::StatusOr<Caller> Gate::admit(const grpc::ServerContextBase& context, absl::string_view method,
                                   absl::string_view project) const {
  TITAN_ASSIGN_OR_RETURN(Caller caller, identify(context));
  TITAN_RETURN_IF_ERROR(check(caller, method, project));
  return caller;
}

}  // namespace titan::auth
