#pragma once

#include <iostream>
#include <string>
#include <utility>

#include "nlohmann/json.hpp"
#include "tests/numerics/golden_case.h"

namespace titan::testing {

// Prints the checks of one case, one JSON line each.
class Reporter {
 public:
  explicit Reporter(std::string name) : name_(std::move(name)) {}

  // Prints the figures. If the comparison did not pass or fail as `must_pass` says, good() becomes false.
  void report(const std::string& check, const Errors& errors, bool must_pass) {
    const bool as_it_must = errors.pass() == must_pass;
    std::cout << nlohmann::json{{"case", name_},          {"check", check},
                                {"good", as_it_must},     {"logits", errors.logits},
                                {"grad", errors.grad},    {"worst", errors.worst},
                                {"loss", errors.loss},    {"routed_elsewhere", errors.routed_elsewhere},
                                {"must_pass", must_pass}, {"passed", errors.pass()}}
              << std::endl;
    good_ &= as_it_must;
  }
  void missing(const std::string& check, const std::string& what) {
    std::cout << nlohmann::json{{"case", name_}, {"check", check}, {"good", false}, {"what", what}, {"must_pass", true}}
              << std::endl;
    good_ = false;
  }
  // Prints the ratios of a step in bfloat16 with these kernels; golden_models.py has the limits.
  void rounded(const std::string& kernels, const Rounded& ratios) {
    std::cout << nlohmann::json{{"case", name_},
                                {"check", "bfloat16 by " + kernels},
                                {"good", true},
                                {"must_pass", true},
                                {"kernels", kernels},
                                {"logits_ratio", ratios.logits},
                                {"loss_ratio", ratios.loss},
                                {"grad_ratio", ratios.grad},
                                {"median_ratio", ratios.median},
                                {"worst", ratios.worst}}
              << std::endl;
  }
  // Prints the calls of operations in a step for each way to compute it; golden_models.py has the limits.
  void calls(const nlohmann::json& counted) {
    std::cout
        << nlohmann::json{{"case", name_}, {"check", "calls"}, {"good", true}, {"calls", counted}, {"must_pass", true}}
        << std::endl;
  }
  bool good() const { return good_; }

 private:
  const std::string name_;
  bool good_ = true;
};

}  // namespace titan::testing
