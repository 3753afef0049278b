#include "controller/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "common/service/rpc/connection_fault.h"
#include "common/service/rpc/error.h"
#include "controller/cli/client.h"
#include "controller/cli/job_names.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

bool quiet_ = false;
bool machine_ = false;

void line(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (text.empty() || text.back() != '\n') std::fputc('\n', stderr);
}

void json_line(const char* kind, nlohmann::ordered_json members) {
  line(nlohmann::ordered_json{{kind, std::move(members)}}.dump(-1, ' ', false,
                                                               nlohmann::ordered_json::error_handler_t::replace));
}

void json_error(const absl::Status& status, std::string_view remedy) {
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string reason = rpc::reason(status);
  nlohmann::ordered_json error = {{"code", code},
                                  {"reason", reason.empty() ? code : reason},
                                  {"message", std::string(status.message())},
                                  {"remedy", std::string(remedy)},
                                  {"metadata", nlohmann::ordered_json::object()},
                                  {"violations", nlohmann::ordered_json::array()}};
  for (const auto& [key, value] : rpc::metadata(status)) {
    if (key != rpc::kRemedy) error["metadata"][key] = value;
  }
  for (const rpc::FieldViolation& violation : rpc::field_violations(status)) {
    error["violations"].push_back({{"field", violation.field}, {"description", violation.description}});
  }
  json_line("error", std::move(error));
}

// Returns whether the controller lacks the job, node or token: it then gives a reason. A local file that is missing is
// a wrong argument.
bool is_missing_there(const absl::Status& status) { return absl::IsNotFound(status) && !rpc::reason(status).empty(); }

// Returns a hint that lists what exists.
std::string where_it_would_be(const absl::Status& status) {
  const std::string reason = rpc::reason(status);
  if (reason == "JOB_NOT_FOUND") return "`titanctl list` shows the jobs";
  if (reason == "NODE_NOT_FOUND") return "`titanctl node list` shows the nodes";
  if (reason != "ATTEMPT_NOT_FOUND") return "`titanctl list` shows the jobs, `titanctl node list` the nodes";
  std::string job = "JOB";
  for (const auto& [key, value] : rpc::metadata(status)) {
    if (key == "job") job = short_name(value);
  }
  return absl::StrCat("`titanctl describe ", job, "` shows its attempts");
}

// Makes foreign text safe to print: lines stay, "?" replaces what does not print.
std::string readable(const std::string& text) { return text::printable(text, "\n\t"); }

}  // namespace

TitanctlExitCode exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return is_missing_there(status) ? kExitNotFound : kExitUsage;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    default:
      return kExitFailed;
  }
}

bool is_capable(int fd) {
  const char* kind = std::getenv("TERM");
  return isatty(fd) != 0 && kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

bool can_redraw(int fd) { return is_capable(fd) && !quiet_ && !machine_; }

bool wants_colour(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return is_capable(fd) && (no_color == nullptr || *no_color == '\0');
}

std::string paint(int fd, Paint colour, std::string_view text) {
  if (colour == Paint::kPlain || !wants_colour(fd)) return std::string(text);
  const char* code = colour == Paint::kRed      ? "31"
                     : colour == Paint::kYellow ? "33"
                     : colour == Paint::kGreen  ? "32"
                                                : "2";
  return std::string("\033[") + code + "m" + std::string(text) + "\033[0m";
}

std::optional<std::size_t> terminal_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return size.ws_col;
}

void note(std::string_view text) {
  if (!quiet_ && !machine_) line(text);
}

void warn(std::string_view text) {
  if (machine_) return json_line("warning", {{"message", std::string(text)}});
  line("titanctl: " + paint(STDERR_FILENO, Paint::kYellow, "warning") + ": " + readable(std::string(text)));
}

void complain(std::string_view text) { report(absl::AbortedError({text.data(), text.size()})); }

TitanctlExitCode report(const absl::Status& status) {
  if (is_missing_there(status)) return report(status, where_it_would_be(status));
  for (const auto& [key, remedy] : rpc::metadata(status)) {
    if (key == rpc::kRemedy) return report(status, remedy);
  }
  if (rpc::reason(status) == kNoController)
    return report(status, "start one with titan-controller, or name it with --controller or TITAN_CONTROLLER");
  if (rpc::reason(status) == kNotLeader)
    return report(status, "name every controller: --controller HOST:PORT,HOST:PORT finds the one that leads");
  return report(status, "");
}

int on_each(const std::vector<std::string>& names, const std::function<absl::Status(const std::string& name)>& act) {
  int code = kExitOk;
  for (const std::string& name : names) {
    const absl::Status done = act(name);
    if (done.ok()) continue;
    const int failed = report(done);
    if (code == kExitOk) code = failed;
    if (absl::IsUnavailable(done)) break;
  }
  return code;
}

TitanctlExitCode report(const absl::Status& status, std::string_view remedy) {
  if (machine_) {
    json_error(status, remedy);
  } else {
    line(absl::StrCat(paint(STDERR_FILENO, Paint::kRed, "titanctl"), ": ", readable(std::string(status.message()))));
    if (!remedy.empty()) line(absl::StrCat("  ", absl::string_view(remedy.data(), remedy.size())));
  }
  return exit_code(status);
}

void set_quiet(bool quiet) { quiet_ = quiet; }
void set_machine_readable(bool machine) { machine_ = machine; }

}  // namespace titan::cli
