"""Alternating runs of several programs, so that other load on the machine affects all of them, and statistics of their
figures."""

import statistics

from programs import Ended


def run_alternating(programs, rounds):
    """Runs each program of {name: what starts one} once per round and returns ({name: its runs}, {name: why it failed}).

    A program that ended without figures is not started again; its earlier runs keep their figures.
    """
    found, failed = {name: [] for name in programs}, {}
    for _ in range(rounds):
        for name, start in programs.items():
            if name in failed:
                continue
            try:
                found[name].append(start())
            except Ended as why:
                failed[name] = str(why)
    return found, failed


def middle(runs, member):
    """Returns the median of a figure over runs; None if no run has it."""
    values = [value for run in runs if (value := getattr(run, member)) is not None]
    return statistics.median(values) if values else None


def with_spread(runs, member, scale=1, digits=0):
    """Returns "1,234 (1,200 to 1,300)": the median with the lowest and the highest; a single figure for one run; "-" without runs."""
    values = sorted(scale * value for run in runs if (value := getattr(run, member)) is not None)
    if not values:
        return "-"
    texts = [f"{value:,.{digits}f}" for value in (statistics.median(values), values[0], values[-1])]
    return texts[0] if len(values) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def ratio(ours, theirs, member):
    """Returns the ratio of the medians; None if one is unknown or theirs is not above zero."""
    above, below = middle(ours, member), middle(theirs, member)
    return above / below if above is not None and below is not None and below > 0 else None


def ratio_with_spread(ours, theirs, member):
    """Returns "4.8 (4.6 to 5.1)": ratio of the medians, with the lowest and the highest ratio of a round; "-" without a ratio."""
    of_medians = ratio(ours, theirs, member)
    if of_medians is None:
        return "-"
    rounds = [one for pair in zip(ours, theirs) if (one := ratio([pair[0]], [pair[1]], member)) is not None]
    if len(rounds) < 2:
        return f"{of_medians:.2g}"
    return f"{of_medians:.2g} ({min(rounds):.2g} to {max(rounds):.2g})"
