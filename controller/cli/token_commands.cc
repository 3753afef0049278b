#include "controller/cli/token_commands.h"

#include <openssl/rand.h>

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/digest/digest.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/service/rpc/identity.h"
#include "controller/cli/client.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/verbs.h"

namespace titan::cli {
namespace {

// Returns 32 random bytes from OpenSSL's generator, in hexadecimal.
absl::StatusOr<std::string> new_secret() {
  std::string bytes(32, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1)
    return absl::InternalError("the system gives no random numbers");
  return absl::BytesToHexString(bytes);
}

absl::StatusOr<v1::CreateTokenRequest> to_proto(const TokenRequest& request, const std::string& secret) {
  v1::CreateTokenRequest out;
  v1::Token& token = *out.mutable_token();
  v1::Token::Role role = v1::Token::ROLE_UNSPECIFIED;
  if (!v1::Token::Role_Parse(absl::AsciiStrToUpper(request.role), &role) || role == v1::Token::ROLE_UNSPECIFIED)
    return absl::InvalidArgumentError(
        absl::StrCat("--role is '", request.role, "': it must be viewer, operator or admin"));
  token.set_id(host::random_hex(6));
  token.set_user(request.user);
  token.set_role(role);
  for (const std::string& project : request.projects) token.add_projects(project);
  if (!request.expires.empty()) {
    TITAN_ASSIGN_OR_RETURN(const absl::Duration lifetime, parse_lifetime(request.expires));
    token.mutable_expire_time()->set_seconds(absl::ToUnixSeconds(absl::Now() + lifetime));
  }
  out.set_secret_sha256(digest::sha256(secret));
  return out;
}

std::string role_text(const v1::Token& token) { return absl::AsciiStrToLower(v1::Token::Role_Name(token.role())); }

// Makes a token and returns its text, which is stored nowhere else.
absl::StatusOr<std::string> make_token(const Globals& globals, const TokenRequest& request) {
  TITAN_ASSIGN_OR_RETURN(const std::string secret, new_secret());
  TITAN_ASSIGN_OR_RETURN(const v1::CreateTokenRequest wanted, to_proto(request, secret));
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  TITAN_ASSIGN_OR_RETURN(const v1::Token made, client.create_token(wanted));
  return rpc::to_text({made.id(), secret});
}

}  // namespace

absl::StatusOr<absl::Duration> parse_lifetime(const std::string& text) {
  constexpr std::pair<char, int> kUnits[] = {{'d', 24 * 3600}, {'h', 3600}, {'m', 60}, {'s', 1}};
  int64_t count = 0;
  for (const auto& [unit, seconds] : kUnits) {
    const bool is_it = !text.empty() && text.back() == unit &&
                       absl::SimpleAtoi(text.substr(0, text.size() - 1), &count) && count > 0 && count <= 1'000'000;
    if (is_it) return absl::Seconds(seconds) * count;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--expires is '", text, "': it must be a time such as 30d, 12h or 90m"));
}

int create_token(const Globals& globals, const TokenRequest& request) {
  const absl::StatusOr<std::string> token = make_token(globals, request);
  if (!token.ok()) return report(token.status());
  if (globals.format != OutputFormat::kTable) {
    print(nlohmann::ordered_json{{"token", *token}}, globals.format);
  } else {
    print(*token + "\n");
    note("shown this once: keep it in a file that only its user can read (chmod 600), and give that to --token-file");
  }
  return kExitOk;
}

int list_tokens(const Globals& globals) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto all = client.list_tokens();
  if (!all.ok()) return report(all.status());
  if (globals.format != OutputFormat::kTable) {
    print(to_json(*all), globals.format);
    return kExitOk;
  }
  Table table({"TOKEN", "USER", "ROLE", "PROJECTS", "AGE", "EXPIRES", "CREATOR"});
  for (const v1::Token& token : all->tokens()) {
    table.add({token.id(), token.user(), role_text(token), absl::StrJoin(token.projects(), ","),
               age(token.create_time()), token.has_expire_time() ? time_text(token.expire_time()) : "never",
               token.creator()});
  }
  print(table.text());
  return kExitOk;
}

int revoke_token(const Globals& globals, const std::string& id) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto revoked = client.revoke_token(id);
  if (!revoked.ok()) return report(revoked.status());
  if (globals.format != OutputFormat::kTable) {
    print(to_json(*revoked), globals.format);
  } else {
    print(absl::StrCat("token ", revoked->id(), " of ", revoked->user(), " is revoked\n"));
  }
  return kExitOk;
}

void add_token_verbs(CLI::App& parent, ParsedCommand& choice) {
  auto made = std::make_shared<TokenRequest>();
  CLI::App& create = add_verb(parent, choice, "create", "Make a token and print it, this once",
                              "titanctl auth token create --user alice --role operator --project vision --expires 30d\n"
                              "(umask 077; titanctl auth token create --user ci --role viewer --project '*' > token)",
                              [&choice, made] { return create_token(choice.globals, *made); });
  create
      .add_option("--user", made->user,
                  "Name of the token's user in records and events; workers that are root run their jobs as "
                  "the unix user of this name")
      ->required();
  create
      .add_option("--role", made->role,
                  "viewer reads, operator also makes and ends jobs (of all projects: drains nodes), admin does "
                  "everything")
      ->required();
  create.add_option("--project", made->projects, "Where the role holds; may be repeated; '*': everywhere")->required();
  create.add_option("--expires", made->expires, "Lifetime, such as 30d or 12h (default: until it is revoked)");
  add_verb(parent, choice, "list", "Tokens, without their secrets", "titanctl auth token list",
           [&choice] { return list_tokens(choice.globals); });
  auto id = std::make_shared<std::string>();
  add_verb(parent, choice, "revoke", "Revoke a token at once, even where it is in use",
           "titanctl auth token revoke 4f1c09ab52de", [&choice, id] { return revoke_token(choice.globals, *id); })
      .add_option("id", *id, "Its id, as `list` shows it")
      ->required();
}

}  // namespace titan::cli
