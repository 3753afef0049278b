#include "controller/cli/certificate_commands.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/identity.h"
#include "controller/cli/pki/files.h"
#include "controller/cli/terminal.h"
#include "controller/cli/verbs.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

using rpc::Identity;

pki::Validity for_days(double days) { return {absl::Now(), absl::Hours(24) * days}; }

absl::StatusOr<std::vector<Identity>> subjects_of(const IssueRequest& request) {
  std::vector<Identity> wanted;
  if (request.controller) wanted.push_back({Identity::Kind::kController, ""});
  for (const std::string& node : request.nodes) wanted.push_back({Identity::Kind::kNode, node});
  if (!request.user.empty()) wanted.push_back({Identity::Kind::kUser, request.user});
  if (!request.admin.empty()) wanted.push_back({Identity::Kind::kAdmin, request.admin});
  if (!wanted.empty()) return wanted;
  return absl::InvalidArgumentError("name the subject with --controller, --node, --user or --admin");
}

std::string folder_name(const Identity& identity) { return identity.name.empty() ? "controller" : identity.name; }

absl::Status check_folders(const std::vector<Identity>& subjects) {
  std::set<std::string> names;
  for (const Identity& identity : subjects) {
    // A name is also the name of a folder.
    if (!rpc::identity_in({rpc::to_uri(identity)}))
      return absl::InvalidArgumentError(absl::StrCat("'", identity.name, "' is not a valid name for a certificate"));
    if (names.insert(folder_name(identity)).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("two certificates would go into the folder ", folder_name(identity),
                                                   ": issue one separately, with another --out"));
  }
  return absl::OkStatus();
}

absl::Status check_hosts(const IssueRequest& request) {
  const bool listens = request.controller;
  if (listens && request.hosts.empty())
    return absl::InvalidArgumentError("a controller's certificate names its addresses: give --address HOST");
  if (!listens && !request.hosts.empty())
    return absl::InvalidArgumentError(
        "--address applies only to a controller's certificate: nothing connects to the others");
  return absl::OkStatus();
}

absl::Status issue(const pki::KeyPair& authority, const Identity& identity, const IssueRequest& request,
                   const std::string& folder) {
  const bool listens = identity.kind == Identity::Kind::kController;
  pki::Subject subject = {rpc::to_uri(identity), listens ? request.hosts : std::vector<std::string>{}, listens};
  // Clients on its own machine use these names; they are of no use elsewhere.
  if (subject.server) subject.hosts.insert(subject.hosts.end(), {"localhost", "127.0.0.1", "::1"});
  return pki::issue_into(folder, authority, subject, for_days(request.days),
                         request.renew ? pki::KeyPolicy::kKept : pki::KeyPolicy::kNew);
}

struct Issued {
  std::string uri;
  std::string folder;
  absl::Time end;
};

void print_issued(const Globals& globals, const std::vector<Issued>& all) {
  std::vector<nlohmann::ordered_json> json;
  std::string text;
  for (const Issued& one : all) {
    const auto end = [&one](absl::string_view format) {
      return absl::FormatTime(format, one.end, absl::UTCTimeZone());
    };
    json.push_back({{"identity", one.uri}, {"folder", one.folder}, {"end", end(absl::RFC3339_sec)}});
    absl::StrAppend(&text, one.uri, ": ", one.folder, "/tls.crt, tls.key and ca.crt, until ", end("%Y-%m-%d %H:%M UTC"),
                    "\n");
  }
  if (globals.format == OutputFormat::kTable) print(text);
  print_each(json, all.size() > 1, globals.format);
}

absl::Status make_authority_in(const std::string& folder, double days) {
  TITAN_ASSIGN_OR_RETURN(const pki::KeyPair authority, pki::make_authority("Titan cluster authority", for_days(days)));
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
  const absl::StatusOr<std::vector<Identity>> subjects = subjects_of(request);
  if (!subjects.ok()) return report(subjects.status());
  for (const absl::Status& checked : {check_folders(*subjects), check_hosts(request)}) {
    if (!checked.ok()) return report(checked);
  }
  const absl::StatusOr<pki::KeyPair> authority = pki::read_authority(request.authority);
  if (!authority.ok()) return report(authority.status(), "`titanctl cluster init-ca DIR` makes an authority");
  std::vector<Issued> all;
  for (const Identity& identity : *subjects) {
    const std::string folder =
        subjects->size() == 1 ? request.out : absl::StrCat(request.out, "/", folder_name(identity));
    if (const absl::Status issued = issue(*authority, identity, request, folder); !issued.ok()) return report(issued);
    const absl::StatusOr<absl::Time> end = rpc::certificate_expiry(folder + "/tls.crt");
    if (!end.ok()) return report(end.status());
    all.push_back({rpc::to_uri(identity), folder, *end});
  }
  print_issued(globals, all);
  return kExitOk;
}

namespace {

const CLI::Range kDays(0.001, 36'500.0);

void add_init(CLI::App& parent, ParsedCommand& choice) {
  struct Init {
    std::string folder, admin = "admin";
    double days = 3650;
  };
  auto made = std::make_shared<Init>();
  CLI::App& init = add_verb(
      parent, choice, "init-ca", "Make the authority that certifies a cluster's programs, and an admin's certificate",
      "titanctl cluster init-ca ~/titan-ca\n"
      "titanctl cluster info --tls ~/titan-ca/admin",
      [&choice, made] { return init_authority(choice.globals, made->folder, made->admin, made->days); });
  init.add_option("folder", made->folder,
                  "Folder to make, private to its owner: anyone with its key can act as any node")
      ->required();
  init.add_option("--admin", made->admin, "Name of the first admin")->capture_default_str();
  init.add_option("--days", made->days,
                  "Days for which the authority is valid; the admin's certificate is valid for a year")
      ->capture_default_str()
      ->check(kDays);
}

void add_issue(CLI::App& parent, ParsedCommand& choice) {
  auto request = std::make_shared<IssueRequest>();
  CLI::App& issue = add_verb(
      parent, choice, "issue", "Certify a controller, nodes, an admin or a user",
      "titanctl cluster issue --ca ~/titan-ca --controller --address c1.example --node n1,n2,n3 --out tls\n"
      "titanctl cluster issue --ca ~/titan-ca --controller --address c1.example --address 10.0.0.1 --out c1\n"
      "titanctl cluster issue --ca ~/titan-ca --node n1 --out n1 --renew     # the same key; loaded without a restart",
      [&choice, request] { return issue_certificate(choice.globals, *request); });
  issue.add_option("--ca", request->authority, "Folder of `titanctl cluster init-ca`")->required();
  issue.add_flag("--controller", request->controller, "For titan-controller");
  issue.add_option("--node", request->nodes, "For the titan-worker of this node; several are separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  issue.add_option("--admin", request->admin, "For a user who may do everything");
  issue.add_option("--user", request->user, "For a user whose rights come from their tokens");
  issue.add_option("--address", request->hosts, "Name or IP address of the controller; may be repeated");
  issue.add_option("--days", request->days, "Days for which it is valid")->capture_default_str()->check(kDays);
  issue
      .add_option("--out", request->out,
                  "Folder for ca.crt, tls.crt and tls.key; several certificates get a subfolder each: `controller`, or "
                  "their name")
      ->required();
  issue.add_flag("--renew", request->renew, "Issue a new certificate for the existing key");
}

}  // namespace

void add_certificate_verbs(CLI::App& parent, ParsedCommand& choice) {
  add_init(parent, choice);
  add_issue(parent, choice);
}

}  // namespace titan::cli
