#include "controller/cli/certificate_commands.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/identity.h"
#include "common/status/status.h"
#include "controller/cli/terminal.h"
#include "controller/pki/files.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

using rpc::Identity;

pki::Validity for_days(double days) { return {absl::Now(), absl::Hours(24) * days}; }

absl::StatusOr<Identity> subject_of(const IssueRequest& request) {
  std::vector<Identity> wanted;
  if (request.controller) wanted.push_back({Identity::Kind::kController, ""});
  for (const auto& [kind, name] : {std::pair(Identity::Kind::kNode, &request.node),
                                   {Identity::Kind::kUser, &request.user},
                                   {Identity::Kind::kAdmin, &request.admin}}) {
    if (!name->empty()) wanted.push_back({kind, *name});
  }
  if (wanted.size() == 1) return wanted[0];
  return absl::InvalidArgumentError("one of --controller, --node, --user and --admin says whose it is");
}

absl::Status check_hosts(const IssueRequest& request, const Identity& identity) {
  const bool listens = identity.kind == Identity::Kind::kController;
  if (listens && request.hosts.empty())
    return absl::InvalidArgumentError("a controller's certificate names what it is called by: give --address HOST");
  if (!listens && !request.hosts.empty())
    return absl::InvalidArgumentError("--address is for the controller's certificate: nobody calls the others");
  return absl::OkStatus();
}

absl::Status issue(const pki::Pair& authority, const Identity& identity, const IssueRequest& request) {
  TITAN_RETURN_IF_ERROR(check_hosts(request, identity));
  pki::Subject subject = {rpc::to_uri(identity), request.hosts, identity.kind == Identity::Kind::kController};
  // By these its own machine calls it; they are of no use elsewhere.
  if (subject.server) subject.hosts.insert(subject.hosts.end(), {"localhost", "127.0.0.1", "::1"});
  return pki::issue_into(request.out, authority, subject, for_days(request.days),
                         request.renew ? pki::KeyIs::kKept : pki::KeyIs::kNew);
}

int tell_issued(const Globals& globals, const std::string& uri, const std::string& folder) {
  if (globals.format != Format::kTable) {
    print(nlohmann::ordered_json{{"identity", uri}, {"folder", folder}}, globals.format);
  } else {
    print(absl::StrCat(uri, ": ", folder, "/tls.crt, tls.key and ca.crt\n"));
  }
  return kExitOk;
}

absl::Status make_authority_in(const std::string& folder, double days) {
  TITAN_ASSIGN_OR_RETURN(const pki::Pair authority, pki::make_authority("Titan cluster authority", for_days(days)));
  return pki::write_authority(folder, authority);
}

}  // namespace

int init_authority(const Globals& globals, const std::string& folder, const std::string& admin, double days) {
  if (const absl::Status made = make_authority_in(folder, days); !made.ok()) return report(made);
  IssueRequest request;
  request.authority = folder;
  request.admin = admin;
  request.out = folder + "/admin";
  return issue_certificate(globals, request);
}

int issue_certificate(const Globals& globals, const IssueRequest& request) {
  const absl::StatusOr<Identity> identity = subject_of(request);
  if (!identity.ok()) return report(identity.status());
  const absl::StatusOr<pki::Pair> authority = pki::read_authority(request.authority);
  if (!authority.ok()) return report(authority.status(), "`titanctl cluster init-ca DIR` makes an authority");
  if (const absl::Status issued = issue(*authority, *identity, request); !issued.ok()) return report(issued);
  return tell_issued(globals, rpc::to_uri(*identity), request.out);
}

}  // namespace titan::cli
