"""Dashboard of a Titan cluster: rows of panels, each with its unit and its queries.

`$job` stands for the selected jobs, `$__rate_interval` for a window that Grafana fits to the picture. Outside Grafana, resolved()
replaces them.
"""

from dataclasses import dataclass

ALL_JOBS = ".+"


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str  # Grafana's name: s, bytes, percentunit (0 to 1), short (a count), ops (per second), none (a number like the loss).
    queries: tuple  # (legend, expression)
    kind: str = "timeseries"  # Or stat: only the newest value.
    about: str = ""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple


def rate(counter, by=""):
    return f"sum{f' by ({by})' if by else ''} (rate({counter}[$__rate_interval]))"


def quantile(q, histogram, by="", selector=""):
    buckets = f"rate({histogram}_bucket{selector}[$__rate_interval])"
    return f"histogram_quantile({q}, sum by ({by + ', ' if by else ''}le) ({buckets}))"


def quantiles(histogram, selector=""):
    return tuple((name, quantile(q, histogram, selector=selector)) for name, q in (("median", 0.5), ("99 %", 0.99)))


def of_job(name):
    return f'{name}{{titan_job=~"$job"}}'


def by_job(name):
    return (("{{titan_job}}", of_job(name)),)


ROWS = (
    Row("Cluster", (
        Panel("Nodes ready", "short", (("ready", 'sum(titan_nodes{state="READY"})'),), "stat"),
        Panel("Leading controllers", "short", (("leading", "sum(titan_leader)"),), "stat", "Always one."),
        Panel("Nodes", "short", (("{{state}}", "sum by (state) (titan_nodes)"), ("{{mark}}", "sum by (mark) (titan_nodes_marked)"))),
        Panel("Devices", "short", (("{{device}} {{state}}", "sum by (device, state) (titan_devices)"),)),
        Panel("Leader", "short", (("{{instance}}", "titan_leader"),), about="1: this controller leads."),
        Panel("Silence of nodes", "s", (("longest", "max(titan_node_heartbeat_age_seconds)"),
                                        ("median", "quantile(0.5, titan_node_heartbeat_age_seconds)"))),
        Panel("Store: transactions", "ops", (("written", rate("titan_store_transactions_total")),)),
        Panel("Store: queue", "short", (("{{instance}}", "titan_store_queue_transactions"),)),
        Panel("Free disk space", "percentunit", (("{{instance}} {{kind}} {{folder}}", "titan_folder_free_bytes / titan_folder_size_bytes"),)),
    )),
    Row("Queue", (
        Panel("Waiting jobs, by reason", "short", (("{{reason}}", "sum by (reason) (titan_pending_jobs)"),)),
        Panel("Longest wait", "s", (("longest", "max(titan_queue_longest_wait_seconds)"),)),
        Panel("Wait for the first placement", "s", quantiles("titan_queue_wait_seconds")),
        Panel("Jobs by state", "short", (("{{state}}", 'sum by (state) (titan_jobs{state!~"SUCCEEDED|FAILED|CANCELLED"})'),)),
    )),
    Row("Jobs", (
        Panel("Step", "short", by_job("titan_job_step")),
        Panel("Loss", "none", by_job("titan_job_loss")),
        Panel("Tokens per second", "ops", (("{{titan_job}}", f'{of_job("titan_job_tokens_per_second")} * {of_job("titan_job_ranks")}'),),
              about="Of all devices of the job."),
        Panel("Model FLOPs utilisation", "percentunit", by_job("titan_job_mfu_ratio"), about="Where the device's peak is known."),
        Panel("Effective training time", "percentunit", by_job("titan_job_ettr_ratio"),
              about="Share of the time since the first attempt that was not lost."),
        Panel("Since the last logged step", "s", by_job("titan_job_step_age_seconds")),
        Panel("Balance of experts", "none", by_job("titan_job_expert_max_over_mean_ratio"), about="Most popular expert over the mean."),
    )),
    Row("Recovery", (
        Panel("Ended attempts, by cause", "short", (("{{cause}}", "sum by (cause) (increase(titan_job_attempts_total[$__rate_interval])) > 0"),)),
        Panel("Time lost, by phase", "percentunit", (("{{phase}}", rate("titan_job_lost_seconds_total", "phase")),),
              about="Seconds lost each second, of all jobs."),
        Panel("Recovery, from failure to new progress", "s", quantiles("titan_recovery_duration_seconds", '{phase="total"}')),
        Panel("Phases of a recovery, median", "s", (("{{phase}}", quantile(0.5, "titan_recovery_duration_seconds", "phase", '{phase!="total"}')),)),
        Panel("Restarts without progress", "short", by_job("titan_job_restarts_without_progress")),
    )),
    Row("Checkpoints", (
        Panel("Age of the newest checkpoint", "s", by_job("titan_job_checkpoint_age_seconds")),
        Panel("Steps not yet saved", "short", (("{{titan_job}}", f'{of_job("titan_job_step")} - {of_job("titan_job_committed_step")}'),)),
        Panel("Writing a checkpoint", "s", quantiles("titan_checkpoint_duration_seconds", '{kind="write"}')),
        Panel("Training stalled by saves", "s", quantiles("titan_checkpoint_duration_seconds", '{kind="stall"}')),
        Panel("Failed saves", "short", (("all jobs", "sum(increase(titan_checkpoint_failures_total[$__rate_interval]))"),)),
    )),
    Row("Stragglers", (
        Panel("Score of slow ranks", "percentunit", (("{{titan_job}} rank {{rank}} on {{node}}", 'titan_rank_straggler_score{titan_job=~"$job"}'),),
              about="Its peers' own time per step divided by its own; below 75 % in three windows in a row the rank is slow."),
        Panel("Slow nodes", "short", (("slow", 'sum(titan_nodes_marked{mark="slow"})'),)),
    )),
    Row("Control plane", (
        Panel("Calls", "ops", (("{{method}}", rate("titan_rpc_duration_seconds_count", "method") + " > 0"),)),
        Panel("Failed calls", "ops", (("{{method}} {{code}}", rate('titan_rpc_duration_seconds_count{code!="OK"}', "method, code") + " > 0"),)),
        Panel("Calls, 99 %", "s", (("{{method}}", quantile(0.99, "titan_rpc_duration_seconds", "method") + " >= 0"),)),
        Panel("Streams", "short", (("{{method}}", "sum by (method) (titan_rpc_open_streams) > 0"),)),
        Panel("New streams", "ops", (("{{method}}", rate("titan_rpc_streams_begun_total", "method") + " > 0"),)),
        Panel("Scheduler's cycle", "s", quantiles("titan_scheduler_cycle_duration_seconds")),
        Panel("Store's commit", "s", quantiles("titan_store_commit_duration_seconds")),
        Panel("CPU", "percentunit", (("{{job}} {{instance}}", 'rate(process_cpu_seconds_total{job=~"titan-.*"}[$__rate_interval])'),),
              about="100 %: one core."),
        Panel("Memory", "bytes", (("{{job}} {{instance}}", 'process_resident_memory_bytes{job=~"titan-.*"}'),)),
        Panel("Descriptors", "percentunit", (("{{job}} {{instance}}", 'process_open_fds{job=~"titan-.*"} / process_max_fds'),)),
    )),
    Row("GPUs", (
        Panel("Utilisation", "percentunit", (("{{node}} {{gpu}}", "titan_worker_gpu_utilization_ratio"),),
              about="Share of the time in which at least one kernel ran."),
        Panel("Memory in use", "percentunit", (("{{node}} {{gpu}}", "titan_worker_gpu_memory_used_bytes / titan_worker_gpu_memory_size_bytes"),)),
        Panel("Temperature", "celsius", (("{{node}} {{gpu}}", "titan_worker_gpu_temperature_celsius"),)),
        Panel("Power", "watt", (("{{node}} {{gpu}}", "titan_worker_gpu_power_watts"),)),
        Panel("Slowed GPUs", "short", (("{{reason}}", "sum by (reason) (titan_worker_gpu_slowed)"),), about="Clocks are lowered, by reason."),
        Panel("Memory errors", "short", (("{{node}} {{gpu}} {{kind}}", "increase(titan_worker_gpu_ecc_errors_total[$__rate_interval]) > 0"),)),
        Panel("XIDs", "short", (("{{node}} {{gpu}}", "increase(titan_worker_gpu_xid_errors_total[$__rate_interval]) > 0"),)),
        Panel("NVLink errors", "short", (("{{node}} {{gpu}}", "increase(titan_worker_gpu_nvlink_errors_total[$__rate_interval]) > 0"),)),
        Panel("Age of the driver's figures", "s", (("{{node}}", "titan_worker_gpu_age_seconds"),)),
    )),
    Row("Nodes", (
        Panel("Workers with a controller", "short", (("connected", "sum(titan_worker_connected)"),)),
        Panel("Rank processes", "short", (("{{node}}", "titan_worker_ranks"),)),
        Panel("Devices in use", "percentunit", (("{{node}}", "titan_worker_devices_used / titan_worker_devices"),)),
        Panel("Ranks that ran out of memory", "short", (("{{node}}", "increase(titan_worker_memory_kills_total[$__rate_interval])"),)),
        Panel("Shims lost", "short", (("{{node}}", "increase(titan_worker_shims_lost_total[$__rate_interval])"),)),
        Panel("Log bytes dropped", "Bps", (("{{node}}", "rate(titan_worker_log_dropped_bytes_total[$__rate_interval])"),)),
    )),
)


def resolved(expression, window, jobs=ALL_JOBS):
    """Returns the expression for Prometheus."""
    return expression.replace("$__rate_interval", window).replace("$job", jobs)


def panels():
    return [panel for row in ROWS for panel in row.panels]
