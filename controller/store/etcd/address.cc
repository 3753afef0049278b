#include "controller/store/etcd/address.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/service/rpc/address.h"

namespace titan::store {

absl::StatusOr<EtcdAddress> parse_etcd_address(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "etcd://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no store: etcd://HOST:PORT[,HOST:PORT...][/PREFIX] is meant"));
  }
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  EtcdAddress address;
  for (const absl::string_view member : absl::StrSplit(parts.first, ',')) {
    TITAN_RETURN_IF_ERROR(rpc::check_address("an address of etcd", member));
    address.members.emplace_back(member);
  }
  address.prefix = parts.second.empty() ? "titan" : std::string(absl::StripSuffix(parts.second, "/"));
  address.prefix += "/";
  return address;
}

}  // namespace titan::store
