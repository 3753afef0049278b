#pragma once

// Manages tokens: what they allow, and how a caller proves one. The store has the digest of each secret and never the
// secret.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "controller/auth/caller.h"
#include "controller/store/store.h"

namespace titan::auth {

inline constexpr char kTokensPrefix[] = "token/";
std::string token_key(const std::string& id);

struct TokenRecord {
  std::string id;
  std::string user;
  Role role = Role::kNone;
  std::vector<std::string> projects;
  std::string digest;  // SHA-256 of the secret, in hexadecimal.
  int64_t create_time_s = 0;
  int64_t expire_time_s = 0;  // 0: never.
  std::string creator;
};

// The tokens in the store. Thread-safe.
class Tokens {
 public:
  using Clock = std::function<absl::Time()>;
  using Done = std::function<void(const absl::StatusOr<TokenRecord>&)>;

  // Reads the tokens in the store. A record that cannot be decoded is set aside and admits nobody. Errors: those of
  // scan().
  static absl::StatusOr<std::unique_ptr<Tokens>> load(store::Store& store, Clock now);

  // Makes a token, which is valid once it is durable; `done` runs then. The same token again is not an error. Errors:
  // InvalidArgument naming the field, AlreadyExists.
  void create(TokenRecord token, Done done);
  // Makes a token invalid at once; `done` runs when that is durable. Errors: NotFound.
  void revoke(const std::string& id, const Done& done);
  std::vector<TokenRecord> list() const;

  // Returns the caller who presents this text. Errors: Unauthenticated.
  absl::StatusOr<Caller> caller(absl::string_view text) const;
  // Checks whether the token of a caller admitted earlier is still valid. Errors: Unauthenticated.
  absl::Status stands(const std::string& id, const std::string& digest) const;

 private:
  Tokens(store::Store& store, Clock now) : store_(store), now_(std::move(now)) {}
  absl::Status check_time(const TokenRecord& token) const;

  store::Store& store_;
  const Clock now_;
  mutable sync::Mutex mutex_;
  std::map<std::string, TokenRecord> tokens_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::auth
