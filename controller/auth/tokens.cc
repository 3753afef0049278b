#include "controller/auth/tokens.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/digest/digest.h"
#include "common/base/status/status.h"
#include "common/base/text/id.h"
#include "common/service/rpc/error.h"
#include "common/service/rpc/identity.h"
#include "nlohmann/json.hpp"

namespace titan::auth {
namespace {

constexpr size_t kDigestSize = 64;  // Hexadecimal digits.
constexpr std::array<Role, 3> kRoles = {Role::kViewer, Role::kOperator, Role::kAdmin};

bool is_project_or_all(const std::string& project) { return project == kAllProjects || text::is_project_name(project); }

bool is_digest(absl::string_view digest) {
  return digest.size() == kDigestSize && std::all_of(digest.begin(), digest.end(), absl::ascii_isxdigit);
}

std::vector<rpc::FieldViolation> mistakes(const TokenRecord& token, absl::Time now) {
  std::vector<rpc::FieldViolation> found;
  const auto add = [&found](bool wrong, const char* field, const char* what) {
    if (wrong) found.push_back({field, what});
  };
  add(!rpc::is_token_id(token.id), "token.id", "must be 8 to 32 of a-z and 0-9");
  add(user_actor(token.user).empty(), "token.user", "must be 1 to 64 letters, digits or . _ @ + -");
  add(token.role == Role::kNone, "token.role", "must be viewer, operator or admin");
  add(token.projects.empty(), "token.projects", "must name a project, or '*' for all");
  add(!std::all_of(token.projects.begin(), token.projects.end(), is_project_or_all), "token.projects",
      "must be names of projects, or '*' for all");
  add(token.role == Role::kAdmin && token.projects != std::vector<std::string>{kAllProjects}, "token.projects",
      "must be '*' for an admin");
  add(!is_digest(token.digest), "secret_sha256", "must be the 32 bytes of a SHA-256");
  add(token.expire_time_s != 0 && token.expire_time_s <= absl::ToUnixSeconds(now), "token.expire_time",
      "must be in the future");
  return found;
}

std::string encode(const TokenRecord& token) {
  return nlohmann::json{{"user", token.user},      {"role", name(token.role)},       {"projects", token.projects},
                        {"sha256", token.digest},  {"created", token.create_time_s}, {"expires", token.expire_time_s},
                        {"creator", token.creator}}
      .dump();
}

std::optional<Role> role_of(absl::string_view text) {
  const auto* const found =
      std::find_if(kRoles.begin(), kRoles.end(), [text](Role role) { return name(role) == text; });
  if (found == kRoles.end()) return std::nullopt;
  return *found;
}

absl::StatusOr<TokenRecord> decode(const store::Record& record) {
  try {
    const nlohmann::json json = nlohmann::json::parse(record.value);
    TokenRecord token;
    token.id = record.key.substr(sizeof kTokensPrefix - 1);
    token.user = json.at("user");
    token.projects = json.at("projects").get<std::vector<std::string>>();
    token.digest = json.at("sha256");
    token.create_time_s = json.value("created", int64_t{0});
    token.expire_time_s = json.at("expires");
    token.creator = json.value("creator", "");
    const std::optional<Role> role = role_of(json.at("role").get<std::string>());
    if (!role) return absl::DataLossError("a token of an unknown role");
    token.role = *role;
    if (!mistakes(token, absl::InfinitePast()).empty()) return absl::DataLossError("an invalid token");
    return token;
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

absl::Status no_token(absl::string_view reason, const std::string& message) {
  return rpc::error(absl::StatusCode::kUnauthenticated, reason,
                    absl::StrCat(message, ": ask an admin for another (`titanctl auth token create`)"));
}

bool same_digest(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool same(const TokenRecord& a, const TokenRecord& b) {
  return same_digest(a.digest, b.digest) && a.user == b.user && a.role == b.role && a.projects == b.projects &&
         a.expire_time_s == b.expire_time_s;
}

}  // namespace

std::string token_key(const std::string& id) { return kTokensPrefix + id; }

absl::StatusOr<std::unique_ptr<Tokens>> Tokens::load(store::Store& store, Clock now) {
  std::unique_ptr<Tokens> tokens(new Tokens(store, std::move(now)));
  TITAN_ASSIGN_OR_RETURN(const std::vector<store::Record> records, store::scan_all(store, kTokensPrefix));
  sync::Lock lock(tokens->mutex_);
  for (const store::Record& record : records) {
    absl::StatusOr<TokenRecord> token = decode(record);
    if (!token.ok()) {
      store.set_aside(record, std::string(token.status().message()));
      continue;
    }
    std::string id = token->id;
    tokens->tokens_.emplace(std::move(id), *std::move(token));
  }
  return tokens;
}

void Tokens::create(TokenRecord token, Done done) {
  token.create_time_s = absl::ToUnixSeconds(now_());
  if (const auto wrong = mistakes(token, now_()); !wrong.empty()) return done(rpc::bad_request("TOKEN_INVALID", wrong));
  store::Transaction transaction{{{token_key(token.id), encode(token), 0}}, store::WhenFull::kRefuse, {}};
  store_.commit(std::move(transaction), [this, token, done = std::move(done)](const absl::StatusOr<int64_t>& revision) {
    absl::StatusOr<TokenRecord> made = token;
    {
      sync::Lock lock(mutex_);
      const auto there = tokens_.find(token.id);
      if (revision.ok()) {
        tokens_[token.id] = token;
      } else if (absl::IsAborted(revision.status()) && there != tokens_.end() && same(there->second, token)) {
        made = there->second;
      } else if (absl::IsAborted(revision.status())) {
        made = rpc::error(absl::StatusCode::kAlreadyExists, "TOKEN_EXISTS",
                          absl::StrCat("another token has the id ", token.id, ": choose another id"));
      } else {
        made = revision.status();
      }
    }
    done(made);
  });
}

void Tokens::revoke(const std::string& id, const Done& done) {
  TokenRecord token;
  bool found = false;
  {
    sync::Lock lock(mutex_);
    const auto there = tokens_.find(id);
    found = there != tokens_.end();
    if (found) {
      token = std::move(there->second);
      tokens_.erase(there);
    }
  }
  if (!found) {
    return done(rpc::error(absl::StatusCode::kNotFound, "TOKEN_NOT_FOUND",
                           absl::StrCat("no token has the id ", id, "; `titanctl auth token list` shows all tokens")));
  }
  store_.commit({{store::erase(token_key(id))}, store::WhenFull::kRetry, {}},
                [token, done](const absl::StatusOr<int64_t>& revision) {
                  if (!revision.ok()) return done(revision.status());
                  done(token);
                });
}

std::vector<TokenRecord> Tokens::list() const {
  sync::Lock lock(mutex_);
  std::vector<TokenRecord> all;
  for (const auto& [id, token] : tokens_) all.push_back(token);
  return all;
}

absl::Status Tokens::check_time(const TokenRecord& token) const {
  if (token.expire_time_s == 0 || absl::ToUnixSeconds(now_()) < token.expire_time_s) return absl::OkStatus();
  return no_token("TOKEN_EXPIRED", absl::StrCat("token ", token.id, " of ", token.user, " has expired"));
}

absl::StatusOr<Caller> Tokens::caller(absl::string_view text) const {
  const rpc::TokenText given = rpc::parse_token(text);
  const std::string digest = digest::sha256_hex(given.secret);
  sync::Lock lock(mutex_);
  const auto token = tokens_.find(given.id);
  if (token == tokens_.end() || !same_digest(token->second.digest, digest))
    return no_token("TOKEN_UNKNOWN", "the token is unknown or was revoked");
  TITAN_RETURN_IF_ERROR(check_time(token->second));
  Caller caller{user_actor(token->second.user), token->second.role, token->second.projects, ""};
  caller.token = given.id;
  caller.token_digest = digest;
  return caller;
}

absl::Status Tokens::stands(const std::string& id, const std::string& digest) const {
  sync::Lock lock(mutex_);
  const auto token = tokens_.find(id);
  if (token == tokens_.end() || !same_digest(token->second.digest, digest))
    return no_token("TOKEN_REVOKED", absl::StrCat("token ", id, " was revoked"));
  return check_time(token->second);
}

}  // namespace titan::auth
