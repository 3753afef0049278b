#pragma once

// Carries out the verbs that make an authority and issue certificates, and declares their flags.

#include <string>
#include <vector>

#include "controller/cli/globals.h"

namespace titan::cli {

// Makes an authority in `folder`, and in FOLDER/admin an admin's certificate that it signs. Returns the exit code.
int init_authority(const Globals& globals, const std::string& folder, const std::string& admin, double days);

struct IssueRequest {
  std::string authority;  // The authority's folder.
  bool controller = false;
  std::vector<std::string> nodes;
  std::string user, admin;
  std::vector<std::string> hosts;
  double days = 365;
  std::string out;  // With several certificates, each gets a subfolder: "controller", or its name.
  bool renew = false;
};
// Issues the requested certificates into request.out. Returns the exit code.
int issue_certificate(const Globals& globals, const IssueRequest& request);

}  // namespace titan::cli
