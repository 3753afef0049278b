#include <memory>

#include "controller/cli/certificate_commands.h"
#include "controller/cli/verbs.h"

namespace titan::cli {
namespace {

const CLI::Range kDays(0.001, 36'500.0);

void add_init(CLI::App& parent, Choice& choice) {
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
  init.add_option("folder", made->folder, "Folder to make, for its owner alone: whoever has its key is every node")
      ->required();
  init.add_option("--admin", made->admin, "What the first admin is called")->capture_default_str();
  init.add_option("--days", made->days, "How long the authority counts; the admin's certificate a year of it")
      ->capture_default_str()
      ->check(kDays);
}

void add_issue(CLI::App& parent, Choice& choice) {
  auto request = std::make_shared<IssueRequest>();
  CLI::App& issue = add_verb(
      parent, choice, "issue", "Certify a controller, nodes, an admin or a user",
      "titanctl cluster issue --ca ~/titan-ca --controller --address c1.example --node n1,n2,n3 --out tls\n"
      "titanctl cluster issue --ca ~/titan-ca --controller --address c1.example --address 10.0.0.1 --out c1\n"
      "titanctl cluster issue --ca ~/titan-ca --node n1 --out n1 --renew     # the same key; taken without a restart",
      [&choice, request] { return issue_certificate(choice.globals, *request); });
  issue.add_option("--ca", request->authority, "Folder of `titanctl cluster init-ca`")->required();
  issue.add_flag("--controller", request->controller, "For titan-controller");
  issue.add_option("--node", request->nodes, "For the titan-worker of this node; of several, with commas between")
      ->delimiter(',')
      ->allow_extra_args(false);
  issue.add_option("--admin", request->admin, "For somebody who may do everything");
  issue.add_option("--user", request->user, "For somebody who may do what their tokens say");
  issue.add_option("--address", request->hosts, "Name or IP address that the controller is called by; may be repeated");
  issue.add_option("--days", request->days, "How long it counts")->capture_default_str()->check(kDays);
  issue
      .add_option(
          "--out", request->out,
          "Folder for ca.crt, tls.crt and tls.key; of several, with a folder for each: `controller`, or its name")
      ->required();
  issue.add_flag("--renew", request->renew, "A new certificate of the key that is there");
}

}  // namespace

void add_certificate_verbs(CLI::App& parent, Choice& choice) {
  add_init(parent, choice);
  add_issue(parent, choice);
}

}  // namespace titan::cli
