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

// titanctl's exit status; documented in `titanctl --help` and docs/operate/states-and-exit-codes.md.
enum TitanctlExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // The job failed, or the request was refused.
  kExitUsage = 2,        // Bad flags or a bad configuration.
  kExitNotFound = 3,     // No such job or node.
  kExitTimeout = 4,      // --timeout ran out.
  kExitUnavailable = 5,  // The controller cannot be reached.
  kExitInterrupted = 130,
  kExitPipeClosed = 141,  // The reader of stdout is gone; as in other tools, nothing else reports it.
};

// Returns the exit code for a status; NotFound of local files is kExitUsage.
TitanctlExitCode exit_code(const absl::Status& status);

// Colours, used only where wants_colour() allows them.
enum class Paint { kPlain, kRed, kYellow, kGreen, kDim };

// Returns whether `fd` is a terminal that can do more than print lines; with TERM=dumb, as in editors, it cannot.
bool is_capable(int fd);
// Returns whether a line on `fd` may be redrawn: it is capable, and notes are shown as text.
bool can_redraw(int fd);
// Returns whether `fd` is capable and NO_COLOR is not set.
bool wants_colour(int fd);
// Returns `text`, coloured when `fd` wants colours.
std::string paint(int fd, Paint colour, std::string_view text);

// Returns the columns of the terminal that is stdout; nothing when it is not a terminal.
std::optional<std::size_t> terminal_width();

void note(std::string_view text);      // Prints progress, or what to do next.
void warn(std::string_view text);      // Prints "titanctl: warning: ...".
void complain(std::string_view text);  // Prints "titanctl: ...", for errors.

// Reports an error with a hint that fits its code, and returns its exit code.
TitanctlExitCode report(const absl::Status& status);
// The same with the caller's hint.
TitanctlExitCode report(const absl::Status& status, std::string_view remedy);

// Applies `act` to each name. A failure is reported and does not stop the others, unless no controller answers. Returns
// the exit code of the first failure.
int on_each(const std::vector<std::string>& names, const std::function<absl::Status(const std::string& name)>& act);

// Turns `note` off, for submit -q.
void set_quiet(bool quiet);

// With -o json and yaml: an error is one JSON object on a separate line, {"error": {"code", "reason", "message",
// "remedy", "metadata", "violations"}}, a warning {"warning": {"message"}}, and notes are left out.
void set_machine_readable(bool machine);

}  // namespace titan::cli
