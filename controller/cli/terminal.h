#pragma once

// Writes notes, colours and errors to stderr (data goes to stdout), and defines titanctl's exit status.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace titan::cli {

// What titanctl's exit status says; documented in `titanctl --help` and docs/operate/states-and-exit-codes.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // The job failed, or the request was refused.
  kExitUsage = 2,        // Bad flags or a bad configuration.
  kExitNotFound = 3,     // No such job or node.
  kExitTimeout = 4,      // --timeout ran out.
  kExitUnavailable = 5,  // The controller cannot be reached.
  kExitInterrupted = 130,
  kExitPipeClosed = 141,  // The reader of stdout is gone; said by nothing else, as other tools do it.
};

// The exit code for an error, by its status code; NotFound of this machine's files is kExitUsage.
ExitCode exit_code(const absl::Status& status);

// Colours, used only where wants_colour() says so.
enum class Paint { kPlain, kRed, kYellow, kGreen, kDim };

// Whether `fd` is a terminal that takes more than lines of text: TERM=dumb, as in editors, does not.
bool is_capable(int fd);
// Whether a line of `fd` may be written over: it is capable, and notes are shown as text.
bool can_redraw(int fd);
// Whether `fd` is capable and NO_COLOR is not set.
bool wants_colour(int fd);
// `text` in colour when `fd` wants it.
std::string paint(int fd, Paint colour, std::string_view text);

// Columns of the terminal that stdout is; nothing when it is not a terminal.
std::optional<std::size_t> terminal_width();

void note(std::string_view text);      // What happens, or what to do next.
void warn(std::string_view text);      // "titanctl: warning: ...".
void complain(std::string_view text);  // "titanctl: ...", for errors.

// Reports an error with a hint that fits its code, and gives the exit code for it.
ExitCode report(const absl::Status& status);
// The same with a hint of the caller's own.
ExitCode report(const absl::Status& status, std::string_view remedy);

// Applies `act` to each name. A failure is reported and keeps no other from it, unless no controller answers.
// Gives the exit code of the first one.
int on_each(const std::vector<std::string>& names, const std::function<absl::Status(const std::string& name)>& act);

// Turns `note` off: submit -q.
void set_quiet(bool quiet);

// With -o json and yaml: an error is one JSON object on a line of its own, {"error": {"code", "reason", "message",
// "remedy", "metadata", "violations"}}, a warning {"warning": {"message"}}, and notes are left out.
void set_machine_readable(bool machine);

}  // namespace titan::cli
