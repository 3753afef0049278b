"""Reads titan-rank's TensorBoard event files with the tensorboard package, and checks tags, steps, times and values."""

import glob
import io
import os
import subprocess
import sys
import tempfile

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as dump:
        subprocess.run([program, "--gtest_filter=MetricsTest.TensorBoard*", "--gtest_brief=1"], check=True,
                       env=dict(os.environ, TITAN_TENSORBOARD_OUT=dump))
        (folder,) = glob.glob(f"{dump}/tb/*/rank_0")
        events = EventAccumulator(folder).Reload()
        assert events.file_version == 2.0, events.file_version
        tags = events.Tags()["scalars"]
        for tag in ["loss_metrics/global_avg_loss", "grad_norm", "throughput(tps)", "mfu(%)", "memory/max_reserved(%)", "lr",
                    "n_tokens_seen", "time_metrics/end_to_end(s)", "validation_metrics/loss"]:
            assert tag in tags, (tag, tags)
        loss = events.Scalars("loss_metrics/global_avg_loss")
        assert [(e.step, e.value) for e in loss] == [(1, 10.0), (5, 2.0), (10, 1.0)], loss
        assert [e.wall_time for e in loss] == [1700000001.0, 1700000002.0, 1700000003.0], loss
        assert [(e.step, e.value) for e in events.Scalars("validation_metrics/loss")] == [(10, 0.5)]
        assert [e.value for e in events.Scalars("throughput(tps)")] == [1000.0] * 3
        (picture,) = events.Images("validation/pictures")
        assert (picture.step, picture.width, picture.height) == (10, 1, 1), picture
        assert Image.open(io.BytesIO(picture.encoded_image_string)).getpixel((0, 0)) == (255, 0, 0)
        # Steps of an earlier attempt after the checkpoint are not shown next to those that replaced them.
        (restarted,) = glob.glob(f"{dump}/restarted/tb/*")
        events = EventAccumulator(restarted).Reload()
        loss = events.Scalars("loss_metrics/global_avg_loss")
        assert [(e.step, e.value) for e in loss] == [(1, 10.0), (5, 2.0), (10, 1.0), (15, 0.5), (20, 0.25)], loss
        assert not events.Scalars("validation_metrics/loss"), events.Scalars("validation_metrics/loss")
        # torch's own writer uses the same tags and the same layout of files.
        from torch.utils.tensorboard import SummaryWriter
        with SummaryWriter(f"{dump}/peer") as writer:
            writer.add_scalar("grad_norm", 0.5, 3)
        peer = EventAccumulator(f"{dump}/peer").Reload()
        assert peer.Tags()["scalars"] == ["grad_norm"]
        ours, theirs = os.listdir(folder)[0], os.listdir(f"{dump}/peer")[0]
        assert ours.split(".")[:3] == theirs.split(".")[:3] == ["events", "out", "tfevents"], (ours, theirs)
    print("tensorboard reads", len(tags), "tags")


main()
