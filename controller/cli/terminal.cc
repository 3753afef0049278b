#include "controller/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace titan::cli {
namespace {

bool quiet_ = false;

void line(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (text.empty() || text.back() != '\n') std::fputc('\n', stderr);
}

}  // namespace

ExitCode exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    default:
      return kExitFailed;
  }
}

bool wants_colour(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(fd) != 0 && (no_color == nullptr || *no_color == '\0');
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
  if (!quiet_) line(text);
}

void warn(std::string_view text) {
  line("titanctl: " + paint(STDERR_FILENO, Paint::kYellow, "warning") + ": " + std::string(text));
}

void complain(std::string_view text) { line(paint(STDERR_FILENO, Paint::kRed, "titanctl") + ": " + std::string(text)); }

ExitCode report(const absl::Status& status) {
  complain(std::string(status.message()));
  const ExitCode code = exit_code(status);
  if (code == kExitNotFound) line("  `titanctl list` shows the jobs, `titanctl node list` the nodes");
  return code;
}

void set_quiet(bool quiet) { quiet_ = quiet; }

}  // namespace titan::cli
