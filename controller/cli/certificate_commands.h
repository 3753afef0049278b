#pragma once

// Carries out the verbs that make an authority and issue certificates, and declares their flags.

#include <string>
#include <vector>

#include "controller/cli/globals.h"

namespace titan::cli {

// An authority in `folder`, and an admin's certificate of it in FOLDER/admin.
int init_authority(const Globals& globals, const std::string& folder, const std::string& admin, double days);

struct IssueRequest {
  std::string authority;  // Its folder.
  bool controller = false;
  std::vector<std::string> nodes;
  std::string user, admin;
  std::vector<std::string> hosts;
  double days = 365;
  std::string out;  // Of several, each has a folder in it: "controller", or its name.
  bool renew = false;
};
int issue_certificate(const Globals& globals, const IssueRequest& request);

}  // namespace titan::cli
