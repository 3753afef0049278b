#include "controller/cli/logs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text/utf8.h"
#include "common/service/rpc/error.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {

bool LogLines::add(int attempt, int rank, std::string_view data, const Take& take) {
  std::string& rest = rest_[{attempt, rank}];
  for (size_t end = data.find('\n'); end != std::string_view::npos; end = data.find('\n')) {
    rest.append(data.substr(0, end));
    data.remove_prefix(end + 1);
    if (!take(attempt, rank, std::exchange(rest, ""))) return false;
  }
  rest.append(data);
  return true;
}

bool LogLines::finish(const Take& take) {
  for (auto& [key, rest] : rest_) {
    if (!rest.empty() && !take(key.first, key.second, std::exchange(rest, ""))) return false;
  }
  return true;
}

namespace {

std::string event_line(const v1::Event& event) {
  std::string where = event.attempt() > 0 ? absl::StrCat("attempt ", event.attempt()) : "-";
  if (event.rank() >= 0 && event.attempt() > 0) absl::StrAppend(&where, " rank ", event.rank());
  if (!event.node().empty()) absl::StrAppend(&where, " ", event.node());
  return absl::StrFormat(
      "%s  %-24s  %-22s  %s\n", time_text(event.time()), event.reason(), where,
      shown(event.actor().empty() ? event.message() : absl::StrCat(event.message(), " (", event.actor(), ")")));
}

// Returns the newest revision of a controller that did not know the requested one.
std::optional<int64_t> newest_revision(const absl::Status& status) {
  if (!absl::IsOutOfRange(status)) return std::nullopt;
  for (const auto& [key, value] : rpc::metadata(status)) {
    int64_t revision = 0;
    if (key == "revision" && absl::SimpleAtoi(value, &revision)) return revision;
  }
  return std::nullopt;
}

}  // namespace

bool LogPrinter::print_chunk(const v1::LogChunk& chunk) {
  if (!chunk.notice().empty()) note(absl::StrCat("rank ", chunk.rank(), ": ", chunk.notice()));
  if (chunk.data().empty()) return true;
  if (announce_attempts_ && chunk.attempt() > attempt_ && attempt_ > 0)
    note(absl::StrCat("--- attempt ", chunk.attempt(), " ---"));
  attempt_ = std::max(attempt_, chunk.attempt());

  int64_t& end = ends_[{chunk.attempt(), chunk.rank()}];
  const int64_t known = std::max<int64_t>(0, end - chunk.offset());
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (known >= size) return true;
  end = chunk.offset() + size;
  const std::string_view data = std::string_view(chunk.data()).substr(known);
  if (format_ == OutputFormat::kTable) return print_lines(chunk.rank(), data);
  return lines_.add(chunk.attempt(), chunk.rank(), data,
                    [this](int attempt, int rank, const std::string& line) { return print_line(attempt, rank, line); });
}

bool LogPrinter::print_line(int attempt, int rank, const std::string& line) const {
  nlohmann::ordered_json object = {{"attempt", attempt}, {"rank", rank}, {"line", text::valid_utf8(line)}};
  if (format_ == OutputFormat::kJson) return print(object.dump() + "\n");
  print(nlohmann::ordered_json::array({std::move(object)}), format_);
  return output_error() == 0;
}

bool LogPrinter::print_lines(int rank, std::string_view data) {
  if (!prefix_ranks_) return print_foreign(std::string(data));
  std::string out;
  while (!data.empty()) {
    const size_t end = std::min(data.find('\n'), data.size() - 1) + 1;
    absl::StrAppend(&out, "[rank ", rank, "] ", absl::string_view(data.data(), end));
    data.remove_prefix(end);
  }
  return print_foreign(out);
}

absl::Status LogPrinter::stream(ControllerClient& client, const LogsOptions& options, Stopper& stopper) {
  bool again = false;
  absl::Status status = follow_stream<v1::LogChunk>(
      client, absl::InfiniteFuture(), stopper,
      [&](grpc::ClientContext& context) {
        v1::TailLogsRequest request;
        request.set_name(options.job);
        request.set_attempt(options.attempt);
        for (const int rank : options.ranks) request.add_ranks(rank);
        // Reads from the start after a lost connection: offsets skip what was printed.
        request.set_tail_lines(again && !ends_.empty() ? -1 : options.tail);
        request.set_follow(options.follow);
        again = true;
        return client.jobs().TailLogs(&context, request);
      },
      [this](const v1::LogChunk& chunk) { return !print_chunk(chunk); }, /*reconnect=*/options.follow);
  lines_.finish([this](int attempt, int rank, const std::string& line) { return print_line(attempt, rank, line); });
  return status;
}

int logs(const Globals& globals, const LogsOptions& options) {
  if (options.follow) Interrupt::block_signals();
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto job = client.get_job(options.job);
  if (!job.ok()) return report(job.status());
  Stopper stopper;
  LogPrinter printer(/*prefix_ranks=*/options.ranks.size() != 1 && job->spec().ranks() > 1,
                     /*announce_attempts=*/options.follow, globals.format);
  if (!options.follow) {
    const absl::Status status = printer.stream(client, options, stopper);
    return status.ok() ? static_cast<int>(kExitOk) : report(status);
  }
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  const absl::Status status = printer.stream(client, options, stopper);
  if (absl::IsCancelled(status)) {
    note(absl::StrCat("\njob ", short_name(job->name()), " keeps running; `titanctl cancel ", short_name(job->name()),
                      "` stops it"));
    return kExitInterrupted;
  }
  if (!status.ok()) return report(status);
  // Ends like `wait` if the job is over. It may not be if the reader of stdout has gone.
  const auto ended = client.get_job(options.job);
  return ended.ok() && is_final(ended->state()) ? report_end(*ended) : static_cast<int>(kExitOk);
}

absl::Status stream_events(ControllerClient& client, const EventsOptions& options, Stopper& stopper,
                           const std::function<bool(const v1::Event&)>& seen) {
  EventCursor cursor(options.after);
  while (true) {
    absl::Status status = follow_stream<v1::Event>(
        client, absl::InfiniteFuture(), stopper,
        [&](grpc::ClientContext& context) {
          v1::ListEventsRequest request;
          request.set_job(options.job);
          request.set_node(options.node);
          request.set_follow(options.follow);
          request.set_revision(cursor.resume());
          return client.jobs().ListEvents(&context, request);
        },
        [&](const v1::Event& event) { return cursor.is_new(event.revision()) && !seen(event); },
        /*reconnect=*/options.follow);
    const std::optional<int64_t> newest = newest_revision(status);
    if (!newest || !cursor.set_back(*newest)) return status;
    note(absl::StrCat("the controller's store was set back to revision ", *newest,
                      " (a backup was restored): events follow from now on"));
  }
}

int events(const Globals& globals, const EventsOptions& options) {
  Interrupt::block_signals();
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  Stopper stopper;
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  const absl::Status status = stream_events(client, options, stopper, [&](const v1::Event& event) {
    if (globals.format == OutputFormat::kTable) return print(event_line(event));
    if (globals.format == OutputFormat::kJson)
      return print(to_json(event).dump() + "\n");  // One object per line, also while following.
    print(nlohmann::ordered_json::array({to_json(event)}), globals.format);
    return true;
  });
  if (absl::IsCancelled(status)) return kExitInterrupted;
  return status.ok() ? static_cast<int>(kExitOk) : report(status);
}

}  // namespace titan::cli
