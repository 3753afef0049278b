#include "common/service/rpc/identity.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace titan::rpc {
namespace {

constexpr absl::string_view kScheme = "titan:";
constexpr std::pair<Identity::Kind, absl::string_view> kNamed[] = {
    {Identity::Kind::kNode, "node:"}, {Identity::Kind::kUser, "user:"}, {Identity::Kind::kAdmin, "admin:"}};

std::optional<Identity> parse(absl::string_view rest) {
  if (rest == "controller") return Identity{Identity::Kind::kController, ""};
  for (const auto& [kind, prefix] : kNamed) {
    absl::string_view name = rest;
    if (absl::ConsumePrefix(&name, prefix) && !name.empty()) return Identity{kind, std::string(name)};
  }
  return std::nullopt;
}

}  // namespace

std::string to_uri(const Identity& identity) {
  for (const auto& [kind, prefix] : kNamed) {
    if (kind == identity.kind) return absl::StrCat(kScheme, prefix, identity.name);
  }
  return absl::StrCat(kScheme, "controller");
}

std::optional<Identity> identity_in(const std::vector<std::string>& uris) {
  std::optional<Identity> found;
  for (absl::string_view uri : uris) {
    if (!absl::ConsumePrefix(&uri, kScheme)) continue;
    if (found) return std::nullopt;
    found = parse(uri);
    if (!found) return std::nullopt;
  }
  return found;
}

}  // namespace titan::rpc
