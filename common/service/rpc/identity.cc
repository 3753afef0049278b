#include "common/service/rpc/identity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
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

bool is_token_id(absl::string_view id) {
  return id.size() >= 8 && id.size() <= 32 &&
         std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); });
}

std::string to_text(const TokenText& token) { return absl::StrCat(kTokenPrefix, token.id, "_", token.secret); }

TokenText parse_token(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kTokenPrefix)) return {};
  const size_t end = text.find('_');
  if (end == absl::string_view::npos || !is_token_id(text.substr(0, end)) || text.size() == end + 1) return {};
  return {std::string(text.substr(0, end)), std::string(text.substr(end + 1))};
}

}  // namespace titan::rpc
